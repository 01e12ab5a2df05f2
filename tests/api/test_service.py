"""The service as a whole, in a process of its own: solved once, kept for ever, survived whatever dies."""

from __future__ import annotations

import hashlib
import os
import signal
import sqlite3
from concurrent.futures import ThreadPoolExecutor
from contextlib import closing
from pathlib import Path
from typing import Any

import pytest

from api.resource import PlanResource
from tests.api.servers import Server, improvable, members, problem, running, wait_until
from tests.api.solves import begun
from zbplan.plan import Plan
from zbplan.validate import validate

COUNTED = "tests.api.solves:counted"
HELD = "tests.api.solves:held"
IMPROVING = "tests.api.solves:improving"


def test_equal_problems_at_once_are_solved_once(tmp_path: Path) -> None:
    asked = problem()
    with running(tmp_path, solve=COUNTED) as server, ThreadPoolExecutor(50) as crowd:
        answers = list(crowd.map(lambda _: server.post(asked, wait_s=30), range(50)))
    assert {answer.status_code for answer in answers} == {200}
    assert len({answer.content for answer in answers}) == 1
    assert len(begun(tmp_path)) == 1


def test_answers_while_it_solves(tmp_path: Path) -> None:
    asked = problem()
    with running(tmp_path, solve=HELD) as server:
        answer = server.post(asked)
        assert answer.status_code == 202
        assert answer.json()["plan"] is not None
        wait_until(lambda: begun(tmp_path))
        key = answer.json()["key"]
        assert server.get("/healthz").status_code == 200
        solving = server.get(f"/v1/plans/{key}")
        assert (solving.status_code, solving.json()["status"]) == (202, "solving")
        held = server.get(f"/v1/plans/{key}", Prefer="wait=1")
        assert (held.status_code, held.headers["preference-applied"]) == (202, "wait=1")
        (tmp_path / "release").touch()
        assert server.get(f"/v1/plans/{key}", Prefer="wait=30").json()["status"] == "done"


def test_better_plan_reaches_readers_while_the_solve_goes_on(tmp_path: Path) -> None:
    with running(tmp_path, solve=IMPROVING) as server:
        resource = server.post(improvable()).json()
        (tmp_path / "release").touch()
        path, first = f"/v1/plans/{resource['key']}", resource["plan"]
        wait_until(lambda: server.get(path).json()["plan"]["plan_id"] != first["plan_id"])
        better = server.get(path).json()
        assert better["status"] == "solving"
        assert better["plan"]["bound"]["iteration_ms"] == first["bound"]["iteration_ms"] + 0.5


def test_long_poll_returns_when_the_client_has_an_older_representation(tmp_path: Path) -> None:
    with running(tmp_path, solve=IMPROVING) as server, ThreadPoolExecutor(1) as other:
        path = f"/v1/plans/{server.post(improvable()).json()['key']}"
        wait_until(lambda: begun(tmp_path))
        old = server.get(path)
        held = {"If-None-Match": old.headers["etag"]}
        assert server.get(path, **held, Prefer="wait=1").status_code == 304
        news = other.submit(server.get, path, **held, Prefer="wait=30")
        (tmp_path / "release").touch()
        answer = news.result(timeout=60)
        assert (answer.status_code, answer.json()["status"]) == (202, "solving")
        assert answer.json()["plan"] != old.json()["plan"]


def test_restart_loses_nothing(tmp_path: Path) -> None:
    asked = problem()
    with running(tmp_path, solve=COUNTED) as server:
        first = server.post(asked, wait_s=30)
        by_id = server.get(f"/v1/plans/by-id/{first.json()['plan']['plan_id']}")
        assert server.stop() == 0
    with running(tmp_path, solve=COUNTED) as server:
        again = server.post(asked)
        assert (again.status_code, again.content) == (200, first.content)
        assert server.get(f"/v1/plans/{first.json()['key']}").content == first.content
        assert server.get(f"/v1/plans/by-id/{first.json()['plan']['plan_id']}").content == by_id.content
    assert len(begun(tmp_path)) == 1


@pytest.mark.parametrize("how", [signal.SIGTERM, signal.SIGINT, signal.SIGKILL])
def test_solve_is_taken_up_again_after_a_restart(tmp_path: Path, how: signal.Signals) -> None:
    with running(tmp_path, solve=HELD) as server:
        key = server.post(problem(time_limit_s=600)).json()["key"]
        wait_until(lambda: begun(tmp_path))
        assert server.stop(how) == (-how if how is signal.SIGKILL else 0)
    (tmp_path / "release").touch()
    with running(tmp_path, solve=HELD) as server:
        assert server.get(f"/v1/plans/{key}", Prefer="wait=30").json()["status"] == "done"
    assert len(begun(tmp_path)) == 2


def test_stop_answers_those_who_wait(tmp_path: Path) -> None:
    with running(tmp_path, solve=HELD) as server, ThreadPoolExecutor(1) as other:
        asked = problem()
        waiting = other.submit(server.post, asked, wait_s=60)
        wait_until(lambda: begun(tmp_path))
        assert server.stop() == 0
        assert waiting.result(timeout=30).status_code == 202


def test_killed_worker_costs_one_retry(tmp_path: Path) -> None:
    with running(tmp_path, solve="tests.api.solves:killed_once") as server:
        assert server.post(problem(), wait_s=30).status_code == 200
        assert len(begun(tmp_path)) == 2


def test_worker_killed_from_outside_costs_one_retry(tmp_path: Path) -> None:
    with running(tmp_path, solve=HELD) as server:
        key = server.post(problem()).json()["key"]
        wait_until(lambda: begun(tmp_path))
        os.kill(begun(tmp_path)[0], signal.SIGKILL)
        wait_until(lambda: len(begun(tmp_path)) == 2)
        (tmp_path / "release").touch()
        assert server.get(f"/v1/plans/{key}", Prefer="wait=30").json()["status"] == "done"
        assert server.post(problem(), wait_s=30).status_code == 200


def test_solve_that_kills_its_workers_fails_and_keeps_the_constructive_plan(tmp_path: Path) -> None:
    asked = problem()
    with running(tmp_path, solve="tests.api.solves:killed") as server:
        answer = server.post(asked, wait_s=30)
        resource = PlanResource.parse_json(answer.content)
        assert (answer.status_code, resource.status) == (200, "failed")
        assert resource.plan is not None
        assert validate(resource.plan) == []
        assert resource.error is not None
        assert (resource.error.status, resource.error.type) == (500, "urn:zbplan:error:crashed")
        assert server.post(asked, wait_s=30).content == answer.content
        assert len(begun(tmp_path)) == 2
        assert server.get("/healthz").status_code == 200


def test_failed_problem_is_taken_up_again_after_a_while(tmp_path: Path) -> None:
    asked = problem()
    with running(tmp_path, solve="tests.api.solves:killed", retry_after_s=0) as server:
        for solves in (2, 4):
            assert server.post(asked, wait_s=30).json()["status"] == "failed"
            assert len(begun(tmp_path)) == solves


def test_idle_workers_may_die(tmp_path: Path) -> None:
    with running(tmp_path) as server:
        assert server.post(problem(), wait_s=30).status_code == 200
        for worker in members(server.process.pid):
            os.kill(worker, signal.SIGKILL)
        wait_until(lambda: server.post(problem(), wait_s=30).status_code == 200)


@pytest.mark.parametrize(
    ("solver", "kind", "status"), [("wrong", "internal", 500), ("refusing", "method", 422), ("broken", "internal", 500)]
)
def test_what_a_solver_gets_wrong_is_not_served(tmp_path: Path, solver: str, kind: str, status: int) -> None:
    with running(tmp_path, solve=f"tests.api.solves:{solver}") as server:
        resource = PlanResource.parse_json(server.post(problem(), wait_s=30).content)
    assert resource.status == "failed"
    assert resource.error is not None
    assert (resource.error.type, resource.error.status) == (f"urn:zbplan:error:{kind}", status)
    assert resource.plan is not None
    assert validate(resource.plan) == []


def test_solve_past_its_time_is_killed_and_its_best_plan_stays(tmp_path: Path) -> None:
    with running(tmp_path, solve=HELD, overtime_s=0.2) as server:
        resource = PlanResource.parse_json(server.post(problem(time_limit_s=0.5), wait_s=30).content)
    assert resource.status == "done"
    assert resource.plan is not None
    assert resource.plan.bound.iteration_ms > 0


def test_delete_stops_a_solve_and_keeps_its_best_plan(tmp_path: Path) -> None:
    asked = problem(time_limit_s=600)
    with running(tmp_path, solve=HELD) as server, server.client() as client:
        key = server.post(asked).json()["key"]
        wait_until(lambda: begun(tmp_path))
        cancelled = client.delete(f"/v1/plans/{key}")
        assert (cancelled.status_code, cancelled.json()["status"]) == (200, "cancelled")
        assert cancelled.json()["plan"] is not None
        wait_until(lambda: not Path(f"/proc/{begun(tmp_path)[0]}").exists())
        (tmp_path / "release").touch()
        assert server.post(asked, wait_s=30).json()["status"] == "done"
        assert client.delete(f"/v1/plans/{key}").json()["status"] == "done"
        assert client.delete("/v1/plans/nothing").status_code == 404


def test_delete_of_a_queued_problem(tmp_path: Path) -> None:
    with running(tmp_path, solve=HELD, solver_workers=1) as server, server.client() as client:
        server.post(problem())
        wait_until(lambda: begun(tmp_path))
        waiting = server.post(problem()).json()
        assert waiting["status"] == "queued"
        assert client.delete(f"/v1/plans/{waiting['key']}").json()["status"] == "cancelled"
        (tmp_path / "release").touch()
        assert server.post(problem(), wait_s=30).status_code == 200
    assert len(begun(tmp_path)) == 2


def test_more_time_solves_again_unless_the_plan_is_optimal(tmp_path: Path) -> None:
    optimal, open_ = problem(devices=1), improvable()
    optimal["profile"]["stages"] = 1
    with running(tmp_path, solve=COUNTED) as server:
        for asked, proven in ((optimal, True), (open_, False)):
            plan = server.post(asked, wait_s=30).json()["plan"]
            assert plan["bound"]["proven_optimal"] == proven
        before = len(begun(tmp_path))
        for time_limit_s, solves in ((5, 0), (10, 0), (20, 1), (20, 1)):
            for asked in (optimal, open_):
                assert server.post({**asked, "time_limit_s": time_limit_s}, wait_s=30).status_code == 200
            assert len(begun(tmp_path)) == before + solves


def damage_bytes(document: bytes) -> bytes:
    return document[:-40]


def damage_times(document: bytes) -> bytes:
    plan = Plan.parse_json(document)
    plan.devices[0].start_ms[1] = 0.0
    return plan.to_json().encode()


@pytest.mark.parametrize("damage", [damage_bytes, damage_times])
@pytest.mark.parametrize("keep_digest", [True, False])
def test_damaged_plan_is_solved_again_and_never_served(tmp_path: Path, damage: Any, keep_digest: bool) -> None:
    with running(tmp_path, solve=COUNTED) as server:
        first = server.post(problem(), wait_s=30).json()
    alter_plans(tmp_path / "plans.sqlite3", damage, keep_digest)
    with running(tmp_path, solve=COUNTED) as server:
        again = server.get(f"/v1/plans/{first['key']}", Prefer="wait=30")
        assert again.json()["status"] == "done"
        assert again.json()["plan"]["devices"] == first["plan"]["devices"]
        by_id = server.get(f"/v1/plans/by-id/{first['plan']['plan_id']}")
        assert validate(Plan.parse_json(by_id.content)) == []
    assert len(begun(tmp_path)) == 2


def alter_plans(path: Path, damage: Any, keep_digest: bool) -> None:
    with closing(sqlite3.connect(path)) as database:
        for row, document, digest in database.execute("SELECT id, document, digest FROM plans").fetchall():
            damaged = damage(document)
            values = (damaged, digest if keep_digest else hashlib.sha256(damaged).hexdigest(), row)
            database.execute("UPDATE plans SET document = ?, digest = ? WHERE id = ?", values)
        database.commit()


def test_store_out_of_order_is_503_and_heals(server: Server) -> None:
    key = server.post(problem(), wait_s=30).json()["key"]
    with closing(sqlite3.connect(server.database)) as database:
        database.execute("ALTER TABLE problems RENAME TO away")
        try:
            wait_until(lambda: server.get(f"/v1/plans/{key}").status_code == 503)
            answer = server.post(problem())
            assert (answer.status_code, answer.headers["retry-after"]) == (503, "5")
            assert answer.headers["content-type"] == "application/problem+json"
        finally:
            database.execute("ALTER TABLE away RENAME TO problems")
    wait_until(lambda: server.get(f"/v1/plans/{key}").status_code == 200)
