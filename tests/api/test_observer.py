"""Ids of requests, the log and the metrics, of a running service."""

from __future__ import annotations

import json
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from prometheus_client.parser import text_string_to_metric_families

from tests.api.servers import Server, problem, running, wait_until


@pytest.fixture
def server(tmp_path: Path) -> Iterator[Server]:
    with running(tmp_path) as service:
        yield service


def logged(server: Server) -> list[dict[str, Any]]:
    return [json.loads(line) for line in server.log().splitlines()]


def metrics(server: Server) -> dict[tuple[str, tuple[tuple[str, str], ...]], float]:
    families = text_string_to_metric_families(server.get("/metrics").text)
    return {
        (sample.name, tuple(sorted(sample.labels.items()))): sample.value
        for family in families
        for sample in family.samples
    }


def test_id_of_a_request_is_the_one_given_or_a_new_one(server: Server) -> None:
    assert server.get("/healthz", **{"X-Request-ID": "job-7/rank.0"}).headers["x-request-id"] == "job-7/rank.0"
    new = [server.get("/healthz", **given).headers["x-request-id"] for given in ({}, {"X-Request-ID": 'x"\\'})]
    assert len({*new, 'x"\\'}) == 3


def test_every_line_of_the_log_is_json_and_says_what_was_asked(server: Server) -> None:
    with server.client(headers={"X-Request-ID": "mine", "Content-Type": "application/json"}) as client:
        client.post("/v1/plans", content="{")
        client.get("/healthz")
        client.get("/v1/nothing")

    def mine() -> list[dict[str, Any]]:
        return [line for line in logged(server) if line.get("request_id") == "mine" and line["event"] == "request"]

    wait_until(lambda: len(mine()) == 2)  # a line is written after the answer is sent
    found = mine()
    assert [(line["method"], line["path"], line["status"]) for line in found] == [
        ("POST", "/v1/plans", 422),
        ("GET", "/v1/nothing", 404),
    ]
    assert all(line["ms"] > 0 and line["timestamp"] and line["level"] == "info" for line in found)


def test_metrics_count_requests_and_solves(server: Server) -> None:
    asked = problem()
    for _ in range(2):
        assert server.post(asked, wait_s=30).status_code == 200
    server.get("/v1/plans/nothing")
    missed = ("zbplan_requests_total", (("method", "GET"), ("route", "/v1/plans/{key}"), ("status", "404")))
    wait_until(lambda: missed in metrics(server))
    found = metrics(server)
    assert found["zbplan_cache_total", (("kind", "none"),)] == 1
    assert found["zbplan_cache_total", (("kind", "exact"),)] == 1
    post = (("method", "POST"), ("route", "/v1/plans"), ("status", "200"))
    assert found["zbplan_requests_total", post] == 2
    assert found[missed] == 1
    assert found["zbplan_solves_total", (("status", "done"),)] == 1
    assert found["zbplan_solve_seconds_count", ()] == found["zbplan_gap_count", ()] == 1
    again = metrics(server)
    assert again["zbplan_solves_total", (("status", "done"),)] == 1


def test_metrics_show_the_queue(server: Server) -> None:
    key = server.begin(problem("held"))
    server.post(problem())
    found = metrics(server)
    assert [found["zbplan_jobs", (("status", status),)] for status in ("solving", "queued", "done")] == [1, 1, 0]
    server.let(key, "release")
    wait_until(lambda: metrics(server)["zbplan_jobs", (("status", "done"),)] == 2)


def test_methods_that_clients_make_up_are_one_series(server: Server) -> None:
    with server.client() as client:
        for method in ("BREW", "STEEP"):
            assert client.request(method, "/nothing").status_code == 404
    other = ("zbplan_requests_total", (("method", "other"), ("route", "none"), ("status", "404")))
    wait_until(lambda: metrics(server).get(other) == 2)
