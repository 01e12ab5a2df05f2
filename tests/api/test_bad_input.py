"""Bad input over HTTP: refused with the place, what was found and what is needed; nothing is stored for it."""

from __future__ import annotations

import json
import sqlite3
from collections.abc import Iterator
from contextlib import closing
from pathlib import Path
from typing import Any

import pytest

from tests.api.servers import Server, problem, running

GOOD = problem()


@pytest.fixture(scope="module")
def server(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Server]:
    """A service that gets nothing but bad input."""
    with running(tmp_path_factory.mktemp("bad"), max_devices=16, max_ops=3000, max_time_limit_s=600) as service:
        yield service


def with_profile(**changes: Any) -> dict[str, Any]:
    return {**GOOD, "profile": {**GOOD["profile"], **changes}}


def without(name: str) -> dict[str, Any]:
    return with_profile(**{name: None}) | {
        "profile": {field: value for field, value in GOOD["profile"].items() if field != name}
    }


def text(value: dict[str, Any]) -> bytes:
    return json.dumps(value).encode()


def raw(name: str, value: str) -> bytes:
    """Return the problem with a text, not necessarily JSON, for a profile field."""
    return text(with_profile(**{name: "HERE"})).replace(b'"HERE"', value.encode())


DEEP = '{"a":' + "[" * 400 + "]" * 400 + "}"

CASES: dict[str, tuple[bytes, str]] = {
    "NaN": (raw("t_f_ms", "NaN"), "$.profile.t_f_ms"),
    "Infinity": (raw("t_f_ms", "Infinity"), "$.profile.t_f_ms"),
    "minus Infinity": (raw("t_comm_ms", "-Infinity"), "$.profile.t_comm_ms"),
    "1e400": (raw("t_f_ms", "1e400"), "$.profile.t_f_ms"),
    "NaN in a list": (raw("t_b_ms", "[1, NaN, 1, 1]"), "$.profile.t_b_ms[1]"),
    "NaN in the environment": (raw("environment", '{"a": [NaN]}'), "$.profile.environment.a[0]"),
    "NaN as text": (text(with_profile(t_f_ms="NaN")), "$.profile.t_f_ms"),
    "negative": (text(with_profile(t_w_ms=-1)), "$.profile.t_w_ms"),
    "number as text": (text(with_profile(t_f_ms="12")), "$.profile.t_f_ms"),
    "true for a number": (text(with_profile(t_f_ms=True)), "$.profile.t_f_ms"),
    "true for a count": (text({**GOOD, "devices": True}), "$.devices"),
    "fraction for a count": (text({**GOOD, "microbatches": 8.5}), "$.microbatches"),
    "null": (text(with_profile(t_f_ms=None)), "$.profile.t_f_ms"),
    "missing": (text(without("t_w_ms")), "$.profile.t_w_ms"),
    "list too short": (text(with_profile(t_f_ms=[1, 2, 3])), "$.profile.t_f_ms"),
    "list too long": (text(with_profile(m_b_bytes=[1] * 5)), "$.profile.m_b_bytes"),
    "list of microbatches too short": (text(with_profile(t_f_ms=[[1, 2], 1, 1, 1])), "$.profile.t_f_ms[0]"),
    "limits too short": (text({**GOOD, "memory_limit": [9, 9]}), "$.memory_limit"),
    "limit that is no multiple": (text({**GOOD, "memory_limit": "much"}), "$.memory_limit"),
    "0 devices": (text({**GOOD, "devices": 0}), "$.devices"),
    "0 microbatches": (text({**GOOD, "microbatches": 0}), "$.microbatches"),
    "10^9 stages": (text(with_profile(stages=10**9)), "$.profile.stages"),
    "10^9 microbatches": (text({**GOOD, "microbatches": 10**9}), "$.microbatches"),
    "10^5000 devices": (text(GOOD).replace(b'"devices": 4', b'"devices": 1' + b"0" * 5000), "$"),
    "more devices than stages": (text({**GOOD, "devices": 5}), "$.placement"),
    "V with an odd number of stages": (text({**GOOD, "placement": "v"}), "$.placement"),
    "unknown method": (text({**GOOD, "method": "zb_h3"}), "$.method"),
    "unknown field": (text(with_profile(t_fwd_ms=1)), "$.profile.t_fwd_ms"),
    "unknown field of the problem": (text({**GOOD, "microbatch": 8}), "$.microbatch"),
    "reserved field": (text(with_profile(t_reduce_ms=1)), "$.profile.t_reduce_ms"),
    "lone surrogate": (text(GOOD)[:-1] + rb', "\ud800": 1}', "$.\ud800"),
    "a name twice": (text(GOOD)[:-1] + b', "devices": 4}', "$"),
    "truncated": (text(GOOD)[:-7], "$"),
    "empty": (b"", "$"),
    "null alone": (b"null", "$"),
    "list": (b"[]", "$"),
    "no JSON": (b"devices: 4", "$"),
    "NaN alone": (b"NaN", "$"),
    "no UTF-8": (text(GOOD).replace(b"1x", b"\xff"), "$"),
    "nested too deep": (b'{"profile":' + b"[" * 100_000, "$"),
    "nested too deep for a moment": (raw("environment", DEEP), "$.profile.environment.a" + "[0]" * 31),
    "too many devices": (text({**with_profile(stages=17), "devices": 17}), "$.devices"),
    "too many ops": (text({**GOOD, "microbatches": 251}), "$.microbatches"),
    "too much time": (text({**GOOD, "time_limit_s": 600.5}), "$.time_limit_s"),
    "no time": (text({**GOOD, "time_limit_s": 0}), "$.time_limit_s"),
    "no memory": (text({**GOOD, "memory_limit": 0}), "$.memory_limit"),
}


@pytest.mark.parametrize("case", CASES)
def test_refused_with_its_place_and_nothing_stored(server: Server, case: str) -> None:
    body, path = CASES[case]
    with server.client() as client:
        answer = client.post("/v1/plans", content=body, headers={"Content-Type": "application/json"})
    assert answer.status_code == 422, answer.text
    assert answer.headers["content-type"] == "application/problem+json"
    errors = strictly(answer.content)["errors"]
    assert path in [item["path"] for item in errors]
    assert all(item["found"] and item["needed"] for item in errors)
    assert stored(server) == (0, 0)


def test_nearest_known_name_is_told(server: Server) -> None:
    answer = server.post({**GOOD, "microbatch": 8})
    assert "'microbatches'" in answer.json()["errors"][0]["needed"]


def test_reserved_name_is_told(server: Server) -> None:
    assert "not supported yet" in server.post(with_profile(t_link_ms=1)).json()["errors"][0]["needed"]


def test_all_that_is_wrong_is_told_at_once(server: Server) -> None:
    answer = server.post({**with_profile(t_f_ms=-1, t_b_ms="1"), "devices": 0})
    assert {item["path"] for item in answer.json()["errors"]} >= {
        "$.profile.t_f_ms",
        "$.profile.t_b_ms",
        "$.devices",
    }


def strictly(body: bytes) -> dict[str, Any]:
    def refuse(constant: str) -> None:
        raise AssertionError(f"{constant} is no JSON")

    document: dict[str, Any] = json.loads(body.decode(), parse_constant=refuse)
    return document


def stored(server: Server) -> tuple[int, int]:
    with closing(sqlite3.connect(server.database)) as database:
        problems, plans = (
            database.execute(f"SELECT count(*) FROM {table}").fetchone()[0] for table in ("problems", "plans")
        )
    return problems, plans


def test_text_that_the_store_cannot_hold_is_the_clients_fault(tmp_path: Path, own_postgresql_url: str) -> None:
    paths = ["plans/%00", "plans/by-id/%00", "profiles/by-digest/%00", "sweeps/%00", "plans?cursor=%00_x"]
    with running(tmp_path, database_url=own_postgresql_url) as server:
        answers = {path: server.get(f"/v1/{path}") for path in paths}
    assert {path: answer.status_code for path, answer in answers.items()} == dict.fromkeys(paths, 422)
    assert "Traceback" not in (tmp_path / "log.txt").read_text()
