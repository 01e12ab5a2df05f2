"""Services and workers on one PostgreSQL, each a process of its own."""

from __future__ import annotations

import os
import signal
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import psycopg
import pytest

from api.settings import Settings
from api.worker import work
from tests.api.servers import Server, improvable, problem, running, wait_until, working
from tests.api.test_events import heard
from zbplan.errors import InvalidInputError

SOON = {"lease_s": 2}
"""How soon a killed worker is missed; elsewhere leases are long, lest a slow machine end one."""


@pytest.fixture(scope="module")
def shared(own_postgresql_url: str) -> dict[str, Any]:
    """What services and workers have in common."""
    return {"database_url": own_postgresql_url, "solving": "workers", "solver_workers": 1}


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return tmp_path_factory.mktemp("cluster")


@pytest.fixture(scope="module")
def replicas(folder: Path, shared: dict[str, Any]) -> Iterator[list[Server]]:
    with running(folder, **shared) as one, running(folder, **shared) as other:
        yield [one, other]


def solver_of(servers: list[Server], key: str) -> int:
    """Return the process that began the only solve of a problem."""
    wait_until(lambda: servers[0].begun(key))
    (solver,) = servers[0].begun(key)
    return solver


def test_equal_problems_at_two_services_are_solved_once(
    folder: Path, replicas: list[Server], shared: dict[str, Any]
) -> None:
    asked = problem("held")
    with working(folder, **shared), working(folder, **shared), ThreadPoolExecutor(40) as crowd:
        answers = [crowd.submit(replicas[at % 2].post, asked, wait_s=30) for at in range(40)]
        key = replicas[0].post(asked).json()["key"]
        solver_of(replicas, key)
        replicas[0].let(key, "release")
        assert {answer.result(timeout=60).status_code for answer in answers} == {200}
        assert len({answer.result().content for answer in answers}) == 1
    assert len(replicas[0].begun(key)) == 1


def test_listeners_at_every_service_hear_of_everything(
    folder: Path, replicas: list[Server], shared: dict[str, Any]
) -> None:
    with working(folder, **shared), ThreadPoolExecutor(2) as crowd:
        key = replicas[0].begin(improvable("improving"))
        stories = [crowd.submit(heard, server, key, **{"Last-Event-ID": "0"}) for server in replicas]
        replicas[0].let(key, "release")
        replicas[0].let(key, "finish")
        one, other = (story.result(timeout=60) for story in stories)
    assert one == other
    assert [event["event"] for event in one] == ["incumbent", "bound", "incumbent", "bound", "done"]


def test_solve_of_a_killed_worker_is_taken_up_by_another(
    folder: Path, replicas: list[Server], shared: dict[str, Any]
) -> None:
    with working(folder, **shared, **SOON) as one, working(folder, **shared, **SOON) as other:
        key = replicas[0].begin(problem("held"))
        owner = os.getsid(solver_of(replicas, key))
        os.kill(owner, signal.SIGKILL)
        (one if one.pid == owner else other).wait(60)
        wait_until(lambda: len(replicas[0].begun(key)) == 2)
        replicas[0].let(key, "release")
        assert replicas[1].get(f"/v1/plans/{key}", Prefer="wait=30").json()["status"] == "done"
        assert len(replicas[0].begun(key)) == 2


def test_stopped_worker_gives_back_what_it_solves(folder: Path, replicas: list[Server], shared: dict[str, Any]) -> None:
    with working(folder, **shared, lease_s=600) as first:
        key = replicas[0].begin(problem("held", time_limit_s=600))
        first.terminate()
        assert first.wait(60) == 0
    assert replicas[0].get(f"/v1/plans/{key}").json()["status"] == "queued"
    replicas[0].let(key, "release")
    with working(folder, **shared):
        assert replicas[1].get(f"/v1/plans/{key}", Prefer="wait=30").json()["status"] == "done"


def test_delete_at_one_service_stops_the_solve_wherever_it_is(
    folder: Path, replicas: list[Server], shared: dict[str, Any]
) -> None:
    with working(folder, **shared):
        key = replicas[0].begin(problem("held", time_limit_s=600))
        solver = solver_of(replicas, key)
        with replicas[1].client() as client:
            assert client.delete(f"/v1/plans/{key}").json()["status"] == "cancelled"
        wait_until(lambda: not Path(f"/proc/{solver}").exists())
        assert replicas[0].post(problem(), wait_s=30).json()["status"] == "done"
    assert replicas[0].get(f"/v1/plans/{key}").json()["status"] == "cancelled"


def test_problem_waits_for_a_worker_through_restarts(
    folder: Path, replicas: list[Server], shared: dict[str, Any]
) -> None:
    with running(folder, **shared) as third:
        key = third.post(problem()).json()["key"]
        assert third.stop(signal.SIGKILL) == -signal.SIGKILL
    with working(folder, **shared):
        assert replicas[1].get(f"/v1/plans/{key}", Prefer="wait=30").json()["status"] == "done"
    assert len(replicas[0].begun(key)) == 1


def test_job_that_was_lost_on_its_way_is_put_again(
    folder: Path, replicas: list[Server], shared: dict[str, Any]
) -> None:
    key = replicas[0].post(problem()).json()["key"]
    with psycopg.connect(shared["database_url"].replace("+psycopg", "")) as connection:
        lost = connection.execute("DELETE FROM procrastinate_jobs WHERE queueing_lock = %s RETURNING args", [key])
        assert lost.fetchall() == [({"key": key},)]
    with working(folder, **shared):
        assert replicas[1].get(f"/v1/plans/{key}", Prefer="wait=30").json()["status"] == "done"


def test_workers_need_postgresql(tmp_path: Path) -> None:
    with pytest.raises(InvalidInputError, match=r"\$\.database_url: found .*sqlite.*needed postgresql"):
        Settings.parse({"database_url": f"sqlite:///{tmp_path}/plans.sqlite3", "solving": "workers"})


def test_worker_tells_what_is_wrong_with_its_database(tmp_path: Path) -> None:
    url = f"postgresql+psycopg://me:secret@/plans?host={tmp_path}"
    with pytest.raises(InvalidInputError, match=r"me:\*\*\*@"):
        work(Settings.parse({"database_url": url, "solving": "workers"}))
