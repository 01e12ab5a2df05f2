"""The store, on real databases of both kinds."""

from __future__ import annotations

from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from typing import Any

import pytest

from api.database import Database
from api.refusal import document
from api.resource import Job
from api.store import ATTEMPTS, OWNERS, Claim, Store
from heuristic import construct
from solver import solve
from tests.api.servers import improvable, problem
from zbplan.plan import Plan
from zbplan.problem import REVISION, Problem

CRASHED = document("crashed", 500, "The solve crashed", "twice")


@pytest.fixture
def store(database_url: str) -> Iterator[Store]:
    database = Database(database_url)
    database.migrate()
    yield Store(database)
    database.close()


def asked(**changes: Any) -> Problem:
    return Problem.parse(problem(**changes))


def added(store: Store, problem: Problem) -> Problem:
    store.add(problem, construct(problem))
    return problem


def claimed(store: Store, problem: Problem, lease_s: float = 60) -> Claim:
    claim = store.claim(problem.key, lease_s)
    assert claim is not None
    return claim


def job(store: Store, problem: Problem) -> Job:
    found = store.job(problem.key)
    assert found is not None
    return found


def plan_of(store: Store, problem: Problem) -> Plan:
    row = job(store, problem).plan
    assert row is not None
    text = store.document(row)
    assert text is not None
    return Plan.parse_json(text)


def bounded(plan: Plan, bound_ms: float) -> Plan:
    return plan.with_bound(bound_ms, "a test")


def test_new_problem_is_queued_with_its_first_plan(store: Store) -> None:
    new = added(store, asked())
    found = job(store, new)
    assert (found.status, found.started_at, found.finished_at, found.error) == ("queued", None, None, None)
    assert plan_of(store, new) == construct(new)


def test_unknown_problem(store: Store) -> None:
    assert store.job("nothing") is None
    assert store.claim("nothing", 60) is None
    assert store.document(1) is None
    assert store.plan_row("nothing") is None
    assert not store.reopen(asked(), 0)


def test_second_add_changes_nothing(store: Store) -> None:
    new = added(store, asked())
    before = job(store, new)
    store.add(new, bounded(construct(new), 1))
    assert job(store, new) == before
    assert store.plan_row(construct(new).plan_id) == before.plan


def test_problem_comes_back_as_it_was(store: Store) -> None:
    profile = {**problem()["profile"], "name": "caf\u00e9 \ud800", "environment": {"device": "A100"}}
    new = added(store, asked(profile=profile, memory_limit=[3, 3, 3, 3.5]))
    assert store.problem(claimed(store, new)) == new


def test_one_of_many_claims_wins(store: Store, database_url: str) -> None:
    new = added(store, asked())
    others = [Database(database_url) for _ in range(4)]
    stores = [store, *map(Store, others)]
    with ThreadPoolExecutor(8) as crowd:
        claims = list(crowd.map(lambda at: stores[at % 5].claim(new.key, 60), range(20)))
    for other in others:
        other.close()
    (won,) = [claim for claim in claims if claim is not None]
    assert store.problem(won) == new
    assert job(store, new).status == "solving"


def test_better_plan_and_better_bound_are_kept_and_others_not(store: Store) -> None:
    new = asked(memory_limit=None)
    worst, better = construct(new.model_copy(update={"method": "gpipe"})), construct(new)
    assert worst.metrics.iteration_ms > better.metrics.iteration_ms
    store.add(new, worst)
    claim = claimed(store, new)
    for offered, kept in (
        (bounded(better, 1), bounded(better, 1)),
        (bounded(better, 2), bounded(better, 2)),
        (bounded(better, 1), bounded(better, 2)),
        (bounded(worst, 3), bounded(better, 2)),
    ):
        store.improve(claim, offered)
        assert plan_of(store, new) == kept


def test_finish_keeps_the_best_plan(store: Store) -> None:
    new = added(store, asked())
    claim = claimed(store, new)
    best = bounded(construct(new), 5)
    store.improve(claim, best)
    store.finish(claim, bounded(best, 4))
    assert plan_of(store, new) == best
    found = job(store, new)
    assert found.status == "done"
    assert found.finished_at is not None


def test_plan_id_leads_to_its_first_document(store: Store) -> None:
    new = added(store, asked())
    first = job(store, new).plan
    store.finish(claimed(store, new), bounded(construct(new), 5))
    assert job(store, new).plan != first
    assert store.plan_row(construct(new).plan_id) == first


def test_what_comes_after_a_cancel_is_not_kept(store: Store) -> None:
    new = added(store, asked())
    claim = claimed(store, new)
    store.cancel(new.key)
    before = job(store, new)
    assert before.status == "cancelled"
    store.improve(claim, bounded(construct(new), 5))
    store.finish(claim, bounded(construct(new), 5))
    store.lost(claim, CRASHED)
    store.fail(claim, CRASHED)
    assert job(store, new) == before


def test_lost_worker_is_forgiven_until_the_last_attempt(store: Store) -> None:
    new = added(store, asked())
    for attempt in range(1, ATTEMPTS + 1):
        store.lost(claimed(store, new), CRASHED)
        assert job(store, new).status == ("queued" if attempt < ATTEMPTS else "failed")
    assert job(store, new).error == CRASHED.to_bytes()
    assert plan_of(store, new) == construct(new)


def test_overrun_is_done(store: Store) -> None:
    new = added(store, asked())
    store.overrun(claimed(store, new))
    assert job(store, new).status == "done"


def test_reopened_after_a_cancel_with_all_attempts(store: Store) -> None:
    new = added(store, asked())
    for _ in range(ATTEMPTS):
        store.lost(claimed(store, new), CRASHED)
    assert store.reopen(new, 60)
    assert job(store, new).status == "failed"
    assert store.reopen(new, 0)
    found = job(store, new)
    assert (found.status, found.error, found.started_at, found.finished_at) == ("queued", None, None, None)
    store.lost(claimed(store, new), CRASHED)
    assert job(store, new).status == "queued"


def test_more_time_reopens_a_plan_that_is_not_optimal(store: Store) -> None:
    new = added(store, Problem.parse(improvable(time_limit_s=10)))
    longer = new.model_copy(update={"time_limit_s": 20})
    store.finish(claimed(store, new), solve(new))
    assert not plan_of(store, new).bound.proven_optimal
    assert store.reopen(new, 0)
    assert job(store, new).status == "done"
    assert store.reopen(longer, 0)
    assert job(store, new).status == "queued"
    assert store.problem(claimed(store, new)) == longer


def test_more_time_is_given_to_a_queued_problem(store: Store) -> None:
    new = added(store, asked(time_limit_s=10))
    for time_limit_s, kept in ((20, 20), (15, 20)):
        assert store.reopen(new.model_copy(update={"time_limit_s": time_limit_s}), 0)
        assert job(store, new).time_limit_s == kept


def test_queued_problems_come_oldest_first(store: Store) -> None:
    first, second, done = added(store, asked()), added(store, asked()), added(store, asked())
    store.finish(claimed(store, done), construct(done))
    assert store.queued() == [first.key, second.key]


def test_lease_that_runs_out_is_taken_up_and_its_holder_can_change_nothing(store: Store) -> None:
    new = added(store, asked())
    late, kept = claimed(store, new, lease_s=-1), claimed(store, added(store, asked()))
    assert store.renew([late, kept], -1) == {late, kept}
    assert store.renew([kept], 60) == {kept}
    store.reap()
    assert store.queued() == [new.key]
    second = claimed(store, new)
    before = job(store, new)
    assert store.renew([late, second], 60) == {second}
    assert store.problem(late) is None
    store.overrun(late)
    store.release(late)
    store.improve(late, bounded(construct(new), 5))
    store.finish(late, bounded(construct(new), 5))
    store.lost(late, CRASHED)
    store.fail(late, CRASHED)
    store.reap()
    assert job(store, new) == before
    assert store.progress(new.key, before.plan or 0) == []


def test_solve_whose_services_all_die_fails_in_the_end(store: Store) -> None:
    new = added(store, asked())
    for owner in range(1, OWNERS + 1):
        claimed(store, new, lease_s=-1)
        store.reap()
        assert job(store, new).status == ("queued" if owner < OWNERS else "failed")
    error = job(store, new).error
    assert error is not None
    assert b"urn:zbplan:error:crashed" in error


def test_released_problem_has_lost_no_attempt(store: Store) -> None:
    new = added(store, asked())
    for _ in range(ATTEMPTS + 1):
        store.release(claimed(store, new))
        assert job(store, new).status == "queued"
    store.lost(claimed(store, new), CRASHED)
    assert job(store, new).status == "queued"


def test_discarded_plan_is_gone_and_its_row_not_given_again(store: Store) -> None:
    new = added(store, asked())
    row = job(store, new).plan
    assert row is not None
    assert store.discard(row) == new.key
    found = job(store, new)
    assert (found.status, found.plan) == ("queued", None)
    store.finish(claimed(store, new), construct(new))
    again = job(store, new).plan
    assert again is not None
    assert again > row
    assert store.discard(row) is None
    assert job(store, new).status == "done"


def test_everything_is_there_for_the_next_process(store: Store, database_url: str) -> None:
    new = added(store, asked())
    other = Database(database_url)
    other.migrate()
    assert Store(other).job(new.key) == job(store, new)
    other.close()


def solved(store: Store, t_f_ms: float, **changes: Any) -> Plan:
    profile = {**problem()["profile"], "t_f_ms": t_f_ms}
    new = added(store, asked(profile=profile, **changes))
    store.finish(claimed(store, new), construct(new))
    return construct(new)


def test_near_plans_come_nearest_first(store: Store) -> None:
    far, near, nearest = (solved(store, t_f_ms) for t_f_ms in (30, 12, 11.9))
    solved(store, 11, microbatches=9)
    added(store, asked(profile={**problem()["profile"], "t_f_ms": 11.1}))
    sought = asked(profile={**problem()["profile"], "t_f_ms": 11})
    store.finish(claimed(store, added(store, sought)), construct(sought))
    for most, plans in ((3, [nearest, near, far]), (1, [nearest]), (0, [])):
        found = [Plan.parse_json(text) for text in store.near(sought, most, revisions="this")]
        assert found == plans


def test_plans_of_another_revision_are_told_apart(store: Store, monkeypatch: pytest.MonkeyPatch) -> None:
    old = solved(store, 12)
    monkeypatch.setattr("api.store.REVISION", REVISION + 1)
    new = solved(store, 30)
    assert [Plan.parse_json(text) for text in store.near(asked(), 3, revisions="this")] == [new]
    assert [Plan.parse_json(text) for text in store.near(asked(), 3, revisions="all")] == [old, new]


def test_best_plan_of_a_claim_is_the_one_to_start_from(store: Store) -> None:
    new = added(store, asked())
    claim = claimed(store, new)
    store.improve(claim, bounded(construct(new), 5))
    best = store.best(claim)
    assert best is not None
    assert Plan.parse_json(best) == bounded(construct(new), 5)
    store.cancel(new.key)
    assert store.best(claim) is None
