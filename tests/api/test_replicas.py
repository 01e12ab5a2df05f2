"""Services that share a database, and what becomes of them when it is away."""

from __future__ import annotations

import asyncio
import json
import os
import signal
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import httpx
import pytest

from tests.api.postgresql import PostgreSQL, postgresql
from tests.api.servers import Server, improvable, problem, running, wait_until, working

LEASE_S = 2
CROWD, AT_ONCE = 1000, 100


@pytest.fixture
def database() -> Iterator[PostgreSQL]:
    with postgresql() as server:
        yield server


def owner_of(servers: list[Server], key: str) -> Server:
    """Return the service whose process began the only solve of a problem."""
    (solver,) = servers[0].begun(key)
    return next(server for server in servers if server.process.pid == os.getsid(solver))


async def posted_by_a_crowd(servers: list[Server], asked: dict[str, Any]) -> list[httpx.Response]:
    """Post a problem a thousand times, a hundred at once: more make the client slower than the services."""
    headers = {"Content-Type": "application/json", "Prefer": "wait=60"}
    body = json.dumps(asked)
    async with httpx.AsyncClient(timeout=120, limits=httpx.Limits(max_connections=AT_ONCE), headers=headers) as client:

        async def post(first: int) -> list[httpx.Response]:
            turns = range(first, CROWD, AT_ONCE)
            return [await client.post(f"{servers[at % 2].url}/v1/plans", content=body) for at in turns]

        answers = await asyncio.gather(*map(post, range(AT_ONCE)))
    return [answer for some in answers for answer in some]


def test_crowd_at_two_services_is_served_by_one_solve(tmp_path: Path, database: PostgreSQL) -> None:
    shared = {"database_url": database.url}
    with running(tmp_path, **shared) as one, running(tmp_path, **shared) as other:
        answers = asyncio.run(posted_by_a_crowd([one, other], problem()))
        assert [answer.status_code for answer in answers] == [200] * CROWD
        assert len({answer.content for answer in answers}) == 1
        assert len(one.begun(answers[0].json()["key"])) == 1


def test_solve_of_a_killed_service_is_taken_up_by_another(tmp_path: Path, database: PostgreSQL) -> None:
    shared = {"database_url": database.url, "lease_s": LEASE_S, "solver_workers": 1}
    with running(tmp_path, **shared) as one, running(tmp_path, **shared) as other:
        key = one.begin(problem("held"))
        waiting = one.post(problem()).json()["key"]
        killed = owner_of([one, other], key)
        left = other if killed is one else one
        killed.stop(signal.SIGKILL)
        wait_until(lambda: len(left.begun(key)) == 2)
        left.let(key, "release")
        for each in (key, waiting):
            assert left.get(f"/v1/plans/{each}", Prefer="wait=30").json()["status"] == "done"


def test_idle_service_takes_up_what_another_has_no_time_for(tmp_path: Path, database: PostgreSQL) -> None:
    shared = {"database_url": database.url, "solver_workers": 1}
    with running(tmp_path, **shared) as one:
        held = one.begin(problem("held"))
        waiting = one.post(problem()).json()["key"]
        with running(tmp_path, **shared) as other:
            assert other.get(f"/v1/plans/{waiting}", Prefer="wait=30").json()["status"] == "done"
            with other.client() as client:
                assert client.delete(f"/v1/plans/{held}").json()["status"] == "cancelled"
            (solver,) = one.begun(held)
            wait_until(lambda: not Path(f"/proc/{solver}").exists())


def test_solve_outlasts_an_outage_of_the_database(tmp_path: Path, database: PostgreSQL) -> None:
    with running(tmp_path, database_url=database.url, lease_s=LEASE_S) as server:
        outlast(database, server)


def test_worker_outlasts_an_outage_of_the_database(tmp_path: Path, database: PostgreSQL) -> None:
    shared = {"database_url": database.url, "lease_s": LEASE_S, "solving": "workers"}
    with running(tmp_path, **shared) as server, working(tmp_path, **shared):
        outlast(database, server)


def test_plan_found_during_an_outage_is_kept_past_the_time_of_its_solve(tmp_path: Path, database: PostgreSQL) -> None:
    shared = {"database_url": database.url, "solving": "workers", "overtime_s": 0}
    with running(tmp_path, **shared) as server, working(tmp_path, **shared):
        key = server.begin(improvable("improving", time_limit_s=3))
        began = time.monotonic()
        database.stop()
        server.let(key, "release")
        server.let(key, "finish")
        wait_until(lambda: time.monotonic() > began + 4)
        database.start()
        wait_until(lambda: server.get(f"/v1/plans/{key}").status_code == 200)
        done = server.get(f"/v1/plans/{key}").json()
    assert (done["status"], done["plan"]["provenance"]["method"]) == ("done", "renamed")


def test_solve_outlasts_a_database_that_only_reads_for_a_while(tmp_path: Path, database: PostgreSQL) -> None:
    with running(tmp_path, database_url=database.url, lease_s=60) as server:
        key = server.begin(problem("held"))
        path = f"/v1/plans/{key}"
        database.read_only(True)
        server.let(key, "release")
        wait_until(lambda: "the store cannot be used" in server.log())
        assert server.get(path).json()["status"] == "solving"
        assert server.post(problem()).status_code == 503
        database.read_only(False)
        assert server.get(path, Prefer="wait=30").json()["status"] == "done"
        assert len(server.begun(key)) == 1


def outlast(database: PostgreSQL, server: Server) -> None:
    """Stop the database during a solve; afterwards all must be as if nothing had been."""
    key = server.begin(problem("held"))
    path = f"/v1/plans/{key}"
    database.stop()
    server.let(key, "release")
    wait_until(lambda: server.get(path).status_code == 503)
    for answer in (server.get(path), server.post(problem())):
        assert (answer.status_code, answer.headers["content-type"]) == (503, "application/problem+json")
        assert int(answer.headers["retry-after"]) > 0
    assert server.get("/healthz").status_code == 200
    database.start()
    wait_until(lambda: server.get(path, Prefer="wait=5").status_code == 200)
    assert server.get(path).json()["status"] == "done"
    assert len(server.begun(key)) == 1
    assert server.post(problem(), wait_s=30).json()["status"] == "done"
