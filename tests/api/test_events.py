"""Server-sent events, over HTTP."""

from __future__ import annotations

import json
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

from tests.api.servers import Server, improvable, problem, running, wait_until


def events(lines: Iterator[str]) -> Iterator[dict[str, Any]]:
    """Parse events as the standard says."""
    fields: dict[str, str] = {}
    for line in lines:
        if line:
            name, _, value = line.partition(": ")
            fields[name] = value
        elif "data" in fields:
            yield {**fields, "data": json.loads(fields["data"])}
            fields = {}


def heard(server: Server, key: str, **headers: str) -> list[dict[str, Any]]:
    with server.client() as client, client.stream("GET", f"/v1/plans/{key}/events", headers=headers) as answer:
        assert answer.status_code == 200
        assert answer.headers["content-type"].startswith("text/event-stream")
        return list(events(answer.iter_lines()))


def test_late_listener_gets_the_last_state(server: Server) -> None:
    resource = server.post(problem(), wait_s=30).json()
    last, done = heard(server, resource["key"])
    plan = resource["plan"]
    assert last["event"] == "incumbent"
    assert last["data"] == {
        "plan_id": plan["plan_id"],
        "iteration_ms": plan["metrics"]["iteration_ms"],
        "bound_ms": plan["bound"]["iteration_ms"],
        "gap": plan["bound"]["gap"],
    }
    assert (done["event"], done["data"]) == ("done", {"key": resource["key"], "status": "done"})


def test_every_listener_gets_every_improvement(server: Server) -> None:
    key = server.begin(improvable("improving"))
    with ThreadPoolExecutor(8) as crowd:
        listening = [crowd.submit(heard, server, key, **{"Last-Event-ID": "0"}) for _ in range(8)]
        server.let(key, "release")
        server.let(key, "finish")
        stories = [each.result(timeout=60) for each in listening]
    assert all(story == stories[0] for story in stories)
    story = stories[0]
    assert [event["event"] for event in story] == ["incumbent", "bound", "incumbent", "bound", "done"]
    bounds = [event["data"]["bound_ms"] for event in story[:-1]]
    assert bounds == sorted(set(bounds))
    assert story[0]["data"]["plan_id"] == story[1]["data"]["plan_id"]
    assert story[2]["data"]["plan_id"] == story[3]["data"]["plan_id"]
    for at, event in enumerate(story[:-1]):
        rest = heard(server, key, **{"Last-Event-ID": event["id"]})
        assert [item["data"] for item in rest] == [item["data"] for item in story[at + 1 :]]
    assert len(heard(server, key, **{"Last-Event-ID": "nonsense"})) == 2


def test_restart_ends_the_stream_without_done(tmp_path: Path) -> None:
    with running(tmp_path) as server, server.client() as client:
        key = server.begin(problem("held"))
        with client.stream("GET", f"/v1/plans/{key}/events") as answer, ThreadPoolExecutor(1) as other:
            story = events(answer.iter_lines())
            assert next(story)["event"] == "incumbent"
            stopping = other.submit(server.stop)
            assert list(story) == []
            assert stopping.result(timeout=60) == 0


def test_too_many_listeners(tmp_path: Path) -> None:
    with running(tmp_path, max_listeners=1) as server, server.client() as client:
        key = server.begin(problem("held"))
        with client.stream("GET", f"/v1/plans/{key}/events") as first:
            story = events(first.iter_lines())
            assert next(story)["event"] == "incumbent"
            second = server.get(f"/v1/plans/{key}/events")
            assert (second.status_code, second.json()["type"]) == (503, "urn:zbplan:error:busy")
            assert "retry-after" in second.headers
        wait_until(lambda: listens(server, key))


def listens(server: Server, key: str) -> bool:
    with server.client() as client, client.stream("GET", f"/v1/plans/{key}/events") as answer:
        return answer.status_code == 200


def test_events_of_nothing(server: Server) -> None:
    assert server.get("/v1/plans/nothing/events").status_code == 404
