"""The service as a whole, in a process of its own: solved once, kept for ever, survived whatever dies."""

from __future__ import annotations

import hashlib
import os
import signal
import sqlite3
import time
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import closing, contextmanager
from pathlib import Path
from typing import Any

import pytest

from api.resource import PlanResource
from tests.api.servers import Server, improvable, members, problem, running, wait_until
from zbplan.plan import Plan
from zbplan.validate import validate


def test_equal_problems_at_once_are_solved_once(server: Server) -> None:
    asked = problem()
    with ThreadPoolExecutor(50) as crowd:
        answers = list(crowd.map(lambda _: server.post(asked, wait_s=30), range(50)))
    assert {answer.status_code for answer in answers} == {200}
    assert len({answer.content for answer in answers}) == 1
    assert len(server.begun(answers[0].json()["key"])) == 1


def test_answers_while_it_solves(server: Server) -> None:
    asked = problem("held")
    key = server.begin(asked)
    path = f"/v1/plans/{key}"
    again = server.post(asked)
    assert (again.status_code, again.json()["status"]) == (202, "solving")
    assert again.json()["plan"] is not None
    assert server.get("/healthz").status_code == 200
    solving = server.get(path)
    assert (solving.status_code, solving.content) == (202, again.content)
    held = server.get(path, Prefer="wait=1")
    assert (held.status_code, held.headers["preference-applied"]) == (202, "wait=1")
    server.let(key, "release")
    assert server.get(path, Prefer="wait=30").json()["status"] == "done"


def test_better_plan_reaches_readers_while_the_solve_goes_on(server: Server) -> None:
    key = server.begin(improvable("improving"))
    path = f"/v1/plans/{key}"
    first = server.get(path).json()["plan"]
    server.let(key, "release")
    wait_until(lambda: server.get(path).json()["plan"]["plan_id"] != first["plan_id"])
    better = server.get(path).json()
    assert better["status"] == "solving"
    assert better["plan"]["bound"]["iteration_ms"] == first["bound"]["iteration_ms"] + 0.5
    server.let(key, "finish")
    assert server.get(path, Prefer="wait=30").json()["status"] == "done"


def test_long_poll_returns_when_the_client_has_an_older_representation(server: Server) -> None:
    key = server.begin(improvable("improving"))
    path = f"/v1/plans/{key}"
    old = server.get(path)
    held = {"If-None-Match": old.headers["etag"]}
    assert server.get(path, **held, Prefer="wait=1").status_code == 304
    with ThreadPoolExecutor(1) as other:
        news = other.submit(server.get, path, **held, Prefer="wait=30")
        server.let(key, "release")
        answer = news.result(timeout=60)
    assert (answer.status_code, answer.json()["status"]) == (202, "solving")
    assert answer.json()["plan"] != old.json()["plan"]
    server.let(key, "finish")
    assert server.get(path, Prefer="wait=30").json()["status"] == "done"


def test_restart_loses_nothing(tmp_path: Path, database_url: str) -> None:
    asked = problem()
    with running(tmp_path, database_url=database_url) as server:
        first = server.post(asked, wait_s=30)
        by_id = server.get(f"/v1/plans/by-id/{first.json()['plan']['plan_id']}")
        assert server.stop() == 0
    with running(tmp_path, database_url=database_url) as server:
        again = server.post(asked)
        assert (again.status_code, again.content) == (200, first.content)
        assert server.get(f"/v1/plans/{first.json()['key']}").content == first.content
        assert server.get(f"/v1/plans/by-id/{first.json()['plan']['plan_id']}").content == by_id.content
        assert len(server.begun(first.json()["key"])) == 1


@pytest.mark.parametrize("how", [signal.SIGTERM, signal.SIGINT, signal.SIGKILL])
def test_solve_is_taken_up_again_after_a_restart(tmp_path: Path, how: signal.Signals) -> None:
    with running(tmp_path, lease_s=2) as server:
        key = server.begin(problem("held", time_limit_s=600))
        assert server.stop(how) == (-how if how is signal.SIGKILL else 0)
        server.let(key, "release")
    with running(tmp_path, lease_s=2) as server:
        assert server.get(f"/v1/plans/{key}", Prefer="wait=30").json()["status"] == "done"
        assert len(server.begun(key)) == 2


def test_stop_answers_those_who_wait(tmp_path: Path) -> None:
    asked = problem("held")
    with running(tmp_path) as server, ThreadPoolExecutor(1) as other:
        server.begin(asked)
        with server.client() as client:
            client.get("/healthz")
            waiting = other.submit(client.post, "/v1/plans", json=asked, headers={"Prefer": "wait=60"})
            wait_until(lambda: answers_under_way(client))
            assert server.stop() == 0
            assert waiting.result(timeout=30).status_code == 202


def answers_under_way(client: Any) -> bool:
    return all(not connection.is_idle() for connection in client._transport._pool.connections)


def test_killed_worker_costs_one_retry(server: Server) -> None:
    answer = server.post(problem("killed once"), wait_s=30)
    assert (answer.status_code, answer.json()["status"]) == (200, "done")
    assert len(server.begun(answer.json()["key"])) == 2


def test_worker_killed_from_outside_costs_one_retry(server: Server) -> None:
    key = server.begin(problem("held"))
    os.kill(server.begun(key)[0], signal.SIGKILL)
    wait_until(lambda: len(server.begun(key)) == 2)
    server.let(key, "release")
    assert server.get(f"/v1/plans/{key}", Prefer="wait=30").json()["status"] == "done"
    assert server.post(problem(), wait_s=30).status_code == 200


def test_solve_that_kills_its_workers_fails_and_keeps_the_constructive_plan(server: Server) -> None:
    asked = problem("killed")
    answer = server.post(asked, wait_s=30)
    resource = PlanResource.parse_json(answer.content)
    assert (answer.status_code, resource.status) == (200, "failed")
    assert resource.plan is not None
    assert validate(resource.plan) == []
    assert resource.error is not None
    assert (resource.error.status, resource.error.type) == (500, "urn:zbplan:error:crashed")
    assert server.post(asked, wait_s=30).content == answer.content
    assert len(server.begun(resource.key)) == 2
    assert server.post(problem(), wait_s=30).status_code == 200


def test_failed_problem_is_taken_up_again_after_a_while(tmp_path: Path) -> None:
    asked = problem("broken")
    with running(tmp_path, retry_after_s=0) as server:
        for solves in (1, 2):
            answer = server.post(asked, wait_s=30).json()
            assert answer["status"] == "failed"
            assert len(server.begun(answer["key"])) == solves


def test_idle_workers_may_die(server: Server) -> None:
    assert server.post(problem(), wait_s=30).status_code == 200
    for worker in members(server.process.pid):
        os.kill(worker, signal.SIGKILL)
    wait_until(lambda: server.post(problem(), wait_s=30).status_code == 200)


@pytest.mark.parametrize(
    ("does", "kind", "status"), [("wrong", "internal", 500), ("refusing", "method", 422), ("broken", "internal", 500)]
)
def test_what_a_solver_gets_wrong_is_not_served(server: Server, does: str, kind: str, status: int) -> None:
    resource = PlanResource.parse_json(server.post(problem(does), wait_s=30).content)
    assert resource.status == "failed"
    assert resource.error is not None
    assert (resource.error.type, resource.error.status) == (f"urn:zbplan:error:{kind}", status)
    assert resource.plan is not None
    assert validate(resource.plan) == []


def test_solve_past_its_time_is_killed_and_its_best_plan_stays(tmp_path: Path) -> None:
    with running(tmp_path, overtime_s=0.2) as server:
        resource = PlanResource.parse_json(server.post(problem("held", time_limit_s=0.5), wait_s=30).content)
    assert resource.status == "done"
    assert resource.plan is not None
    assert resource.plan.bound.iteration_ms > 0


def test_solve_that_wants_too_much_memory_fails_alone(tmp_path: Path) -> None:
    with running(tmp_path, solver_memory_bytes=1 << 30) as server:
        resource = PlanResource.parse_json(server.post(problem("greedy"), wait_s=30).content)
        assert resource.error is not None
        assert (resource.status, resource.error.type) == ("failed", "urn:zbplan:error:memory")
        assert server.post(problem(), wait_s=30).json()["status"] == "done"
        assert len(server.begun(resource.key)) == 1


def test_delete_stops_a_solve_and_keeps_its_best_plan(server: Server) -> None:
    asked = problem("held", time_limit_s=600)
    key = server.begin(asked)
    with server.client() as client:
        cancelled = client.delete(f"/v1/plans/{key}")
        assert (cancelled.status_code, cancelled.json()["status"]) == (200, "cancelled")
        assert cancelled.json()["plan"] is not None
        wait_until(lambda: not Path(f"/proc/{server.begun(key)[0]}").exists())
        server.let(key, "release")
        assert server.post(asked, wait_s=30).json()["status"] == "done"
        assert client.delete(f"/v1/plans/{key}").json()["status"] == "done"
        assert client.delete("/v1/plans/nothing").status_code == 404


def test_delete_of_a_queued_problem(server: Server) -> None:
    first = server.begin(problem("held"))
    waiting = server.post(problem()).json()
    assert waiting["status"] == "queued"
    with server.client() as client:
        assert client.delete(f"/v1/plans/{waiting['key']}").json()["status"] == "cancelled"
    server.let(first, "release")
    assert server.post(problem(), wait_s=30).status_code == 200
    assert server.begun(waiting["key"]) == []


def test_more_time_solves_again_unless_the_plan_is_optimal(server: Server) -> None:
    optimal, open_ = problem(devices=1), improvable()
    optimal["profile"]["stages"] = 1
    for asked, proven in ((optimal, True), (open_, False)):
        answer = server.post(asked, wait_s=30).json()
        assert answer["plan"]["bound"]["proven_optimal"] == proven
        for time_limit_s, solves in ((5, 1), (10, 1), (20, 1 if proven else 2), (20, 1 if proven else 2)):
            assert server.post({**asked, "time_limit_s": time_limit_s}, wait_s=30).status_code == 200
            assert len(server.begun(answer["key"])) == solves


def test_more_time_has_to_wait_for_room_and_the_old_plan_stays(tmp_path: Path, database_url: str) -> None:
    asked = improvable(time_limit_s=5)
    with running(tmp_path, database_url=database_url, max_jobs=1) as server:
        old = server.post(asked, wait_s=30)
        path = f"/v1/plans/{old.json()['key']}"
        held = server.begin(problem("held"))
        full = server.post({**asked, "time_limit_s": 20})
        assert (full.status_code, full.json()["type"]) == (503, "urn:zbplan:error:busy")
        assert int(full.headers["retry-after"]) > 0
        again = server.get(path)
        assert (again.status_code, again.content) == (200, old.content)
        server.let(held, "release")
        assert server.get(f"/v1/plans/{held}", Prefer="wait=30").json()["status"] == "done"
        assert server.post({**asked, "time_limit_s": 20}, wait_s=30).json()["status"] == "done"
        assert len(server.begun(old.json()["key"])) == 2


def damage_bytes(document: bytes) -> bytes:
    return document[:-40]


def damage_times(document: bytes) -> bytes:
    plan = Plan.parse_json(document)
    plan.devices[0].start_ms[1] = 0.0
    return plan.to_json().encode()


def test_damaged_plans_are_solved_again_and_never_served(tmp_path: Path) -> None:
    with running(tmp_path) as server:
        plans = [server.post(problem(), wait_s=30).json()["plan"] for _ in range(4)]
    with closing(sqlite3.connect(server.database)) as database:
        for at, plan in enumerate(plans):
            alter(database, plan["plan_id"], (damage_bytes, damage_times)[at % 2], keep_digest=at < 2)
    with running(tmp_path) as server:
        for plan in plans:
            again = server.get(f"/v1/plans/{plan['key']}", Prefer="wait=30").json()
            assert (again["status"], again["plan"]["devices"]) == ("done", plan["devices"])
            by_id = server.get(f"/v1/plans/by-id/{plan['plan_id']}")
            assert validate(Plan.parse_json(by_id.content)) == []
            assert len(server.begun(plan["key"])) == 2


def alter(database: sqlite3.Connection, plan_id: str, damage: Any, *, keep_digest: bool) -> None:
    rows = database.execute("SELECT id, document, digest FROM plans WHERE plan_id = ?", (plan_id,)).fetchall()
    for row, document, digest in rows:
        damaged = damage(document)
        values = (damaged, digest if keep_digest else hashlib.sha256(damaged).hexdigest(), row)
        database.execute("UPDATE plans SET document = ?, digest = ? WHERE id = ?", values)
    database.commit()


@contextmanager
def out_of_order(path: Path) -> Iterator[None]:
    """Let the store fail at whatever it is asked."""
    with closing(sqlite3.connect(path)) as database:
        database.execute("ALTER TABLE problems RENAME TO away")
        try:
            yield
        finally:
            database.execute("ALTER TABLE away RENAME TO problems")


def test_plan_that_the_store_cannot_take_is_kept_for_it_past_the_time_of_the_solve(tmp_path: Path) -> None:
    with running(tmp_path, overtime_s=0) as server:
        key = server.begin(improvable("improving", time_limit_s=3))
        path, began = f"/v1/plans/{key}", time.monotonic()
        first = server.get(path).json()["plan"]
        with out_of_order(server.database):
            server.let(key, "release")
            server.let(key, "finish")
            wait_until(lambda: time.monotonic() > began + 4)
        wait_until(lambda: server.get(path).status_code == 200)
        done = server.get(path).json()
    assert (done["status"], done["plan"]["provenance"]["method"]) == ("done", "renamed")
    assert done["plan"]["bound"]["iteration_ms"] == first["bound"]["iteration_ms"] + 0.75


def test_plan_of_a_solve_that_alone_cannot_reach_the_store_outlives_its_process(
    tmp_path: Path, database_url: str
) -> None:
    with running(tmp_path, database_url=database_url, overtime_s=0) as server:
        answer = server.post(improvable("cut off", time_limit_s=1))
        first, path = answer.json()["plan"], answer.headers["content-location"]
        done = server.get(path, Prefer="wait=30").json()
    assert done["status"] == "done"
    assert done["plan"]["bound"]["iteration_ms"] == first["bound"]["iteration_ms"] + 0.25
    assert len(server.begun(done["key"])) == 1


def test_store_out_of_order_is_503_and_heals(server: Server) -> None:
    key = server.post(problem(), wait_s=30).json()["key"]
    with out_of_order(server.database):
        wait_until(lambda: server.get(f"/v1/plans/{key}").status_code == 503)
        answer = server.post(problem())
        assert (answer.status_code, answer.headers["retry-after"]) == (503, "5")
        assert answer.headers["content-type"] == "application/problem+json"
    wait_until(lambda: server.get(f"/v1/plans/{key}").status_code == 200)
