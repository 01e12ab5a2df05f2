"""The store, on real databases of both kinds."""

from __future__ import annotations

from concurrent.futures import ThreadPoolExecutor
from typing import Any

import pytest

from api.claims import ATTEMPTS, Claims
from api.database import Database
from api.desk import is_sound
from api.settings import Settings
from api.statements import Found
from api.store import Store
from heuristic import construct
from solver import solve
from tests.api.servers import improvable, problem
from tests.api.stored import CRASHED, added, asked, bounded, claimed, job, plan_of
from zbplan.plan import Plan
from zbplan.problem import REVISION, Problem


def test_new_problem_is_queued_with_its_first_plan(store: Store) -> None:
    new = added(store, asked())
    found = job(store, new)
    assert (found.status, found.started_at, found.finished_at, found.error) == ("queued", None, None, None)
    assert plan_of(store, new) == construct(new)


def test_unknown_problem(store: Store, claims: Claims) -> None:
    assert store.job("nothing") is None
    assert claims.claim("nothing", 60) is None
    assert store.document(1) is None
    assert store.plan_row("nothing") is None


def test_second_add_changes_nothing(store: Store) -> None:
    new = added(store, asked())
    before = job(store, new)
    store.add(new, bounded(construct(new), 1))
    assert job(store, new) == before
    assert store.plan_row(construct(new).plan_id) == before.plan


def test_plan_id_leads_to_its_first_document(store: Store, claims: Claims) -> None:
    new = added(store, asked())
    first = job(store, new).plan
    claims.finish(claimed(claims, new), Found.of(bounded(construct(new), 5)))
    assert job(store, new).plan != first
    assert store.plan_row(construct(new).plan_id) == first


def reopened(store: Store, problem: Problem, retry_after_s: float = 0) -> bool:
    """Return whether a known problem was taken up again."""
    known = job(store, problem)
    worth = store.is_worth_another_solve(known, problem.time_limit_s, retry_after_s)
    if worth:
        store.reopen(known, problem)
    return worth


def test_reopened_after_a_cancel_with_all_attempts(store: Store, claims: Claims) -> None:
    new = added(store, asked())
    for _ in range(ATTEMPTS):
        claims.lost(claimed(claims, new), CRASHED)
    assert not reopened(store, new, retry_after_s=60)
    assert job(store, new).status == "failed"
    assert reopened(store, new)
    found = job(store, new)
    assert (found.status, found.error, found.started_at, found.finished_at) == ("queued", None, None, None)
    claims.lost(claimed(claims, new), CRASHED)
    assert job(store, new).status == "queued"


def test_more_time_reopens_a_plan_that_is_not_optimal(store: Store, claims: Claims) -> None:
    new = added(store, Problem.parse(improvable(time_limit_s=10)))
    longer = new.model_copy(update={"time_limit_s": 20})
    claims.finish(claimed(claims, new), Found.of(solve(new)))
    assert not plan_of(store, new).bound.proven_optimal
    assert not reopened(store, new)
    assert job(store, new).status == "done"
    assert reopened(store, longer)
    assert job(store, new).status == "queued"
    assert claims.problem(claimed(claims, new)) == longer


def test_more_time_takes_the_claim_of_a_solve_under_way(store: Store, claims: Claims) -> None:
    new = added(store, asked(time_limit_s=10))
    claim = claimed(claims, new)
    assert not reopened(store, new)
    assert claims.renew([claim], 60) == {claim}
    best = job(store, new).plan
    assert reopened(store, new.model_copy(update={"time_limit_s": 20}))
    assert claims.renew([claim], 60) == set()
    found = job(store, new)
    assert (found.status, found.plan) == ("queued", best)
    assert claimed(claims, new).time_limit_s == 20


def test_more_time_is_given_to_a_queued_problem(store: Store) -> None:
    new = added(store, asked(time_limit_s=10))
    for time_limit_s, kept in ((20, 20), (15, 20)):
        assert reopened(store, new.model_copy(update={"time_limit_s": time_limit_s})) == (time_limit_s == kept)
        assert job(store, new).time_limit_s == kept


def test_what_is_solved_again_is_the_share_of_who_asked_again(store: Store, claims: Claims) -> None:
    new = Problem.parse(improvable(time_limit_s=10))
    store.add(new, construct(new), "first")
    for time_limit_s, ends, owner in ((20, False, "first"), (30, True, "second")):
        if ends:
            claims.finish(claimed(claims, new), Found.of(construct(new)))
        store.reopen(job(store, new), new.model_copy(update={"time_limit_s": time_limit_s}), "second")
        assert [store.under_way(caller) for caller in ("first", "second")] == [owner == "first", owner == "second"]


def test_job_that_has_changed_is_not_reopened(store: Store, claims: Claims) -> None:
    new = added(store, asked())
    seen = job(store, new)
    claim = claimed(claims, new)
    store.reopen(seen, new.model_copy(update={"time_limit_s": 20}))
    assert claims.renew([claim], 60) == {claim}


def test_queued_problems_come_oldest_first(store: Store, claims: Claims) -> None:
    first, second, done = added(store, asked()), added(store, asked()), added(store, asked())
    claims.finish(claimed(claims, done), Found.of(construct(done)))
    assert store.queued() == [first.key, second.key]


def test_discarded_plan_is_gone_and_its_row_not_given_again(store: Store, claims: Claims) -> None:
    new = added(store, asked())
    row = job(store, new).plan
    assert row is not None
    assert store.discard(row) == new.key
    found = job(store, new)
    assert (found.status, found.plan) == ("queued", None)
    claims.finish(claimed(claims, new), Found.of(construct(new)))
    again = job(store, new).plan
    assert again is not None
    assert again > row
    assert store.discard(row) is None
    assert job(store, new).status == "done"


def test_discard_of_a_plan_that_was_just_improved_on_touches_nothing_else(store: Store, claims: Claims) -> None:
    """A reader finds a plan damaged while its solve finds a better one."""
    new = added(store, asked())
    damaged, claim = job(store, new).plan, claimed(claims, new)
    assert damaged is not None
    claims.improve(claim, Found.of(bounded(construct(new), 5)))
    better = job(store, new)
    assert store.discard(damaged) is None
    assert job(store, new) == better
    assert store.document(damaged) is None
    assert claims.renew([claim], 60) == {claim}


def test_plan_discarded_by_many_at_once_queues_its_problem_once(
    store: Store, claims: Claims, database_url: str
) -> None:
    new = added(store, asked())
    row = job(store, new).plan
    assert row is not None
    claims.finish(claimed(claims, new), Found.of(construct(new)))
    others = [Database(database_url) for _ in range(4)]
    with ThreadPoolExecutor(4) as crowd:
        keys = list(crowd.map(lambda database: Store(database).discard(row), others))
    for other in others:
        other.close()
    assert [key for key in keys if key is not None] == [new.key]
    assert (job(store, new).status, job(store, new).plan) == ("queued", None)


def test_old_key_is_gone_after_a_new_revision_and_its_plan_is_sound(
    store: Store, claims: Claims, database_url: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    old = added(store, asked())
    key, row = old.key, job(store, old).plan
    assert row is not None
    next_revision(monkeypatch)
    assert store.job(key) is None
    assert claims.claim(key, 60) is None
    assert (store.queued(), store.under_way()) == ([], 0)
    assert is_sound(Settings(database_url=database_url), row)


def test_everything_is_there_for_the_next_process(store: Store, database_url: str) -> None:
    new = added(store, asked())
    other = Database(database_url)
    other.migrate()
    assert Store(other).job(new.key) == job(store, new)
    other.close()


def solved(store: Store, claims: Claims, t_f_ms: float, **changes: Any) -> Plan:
    profile = {**problem()["profile"], "t_f_ms": t_f_ms}
    new = added(store, asked(profile=profile, **changes))
    claims.finish(claimed(claims, new), Found.of(construct(new)))
    return construct(new)


def next_revision(monkeypatch: pytest.MonkeyPatch) -> None:
    for module in ("zbplan.problem", "api.store", "api.statements"):
        monkeypatch.setattr(f"{module}.REVISION", REVISION + 1)


def test_near_plans_come_nearest_first(store: Store, claims: Claims) -> None:
    far, near, nearest = (solved(store, claims, t_f_ms) for t_f_ms in (30, 12, 11.9))
    solved(store, claims, 11, microbatches=9)
    added(store, asked(profile={**problem()["profile"], "t_f_ms": 11.1}))
    sought = asked(profile={**problem()["profile"], "t_f_ms": 11})
    claims.finish(claimed(claims, added(store, sought)), Found.of(construct(sought)))
    for most, plans in ((3, [nearest, near, far]), (1, [nearest]), (0, [])):
        found = [Plan.parse_json(text) for text in store.near(sought, most, revisions="this")]
        assert found == plans


def test_plans_of_another_revision_are_told_apart(
    store: Store, claims: Claims, monkeypatch: pytest.MonkeyPatch
) -> None:
    old = solved(store, claims, 12)
    next_revision(monkeypatch)
    new = solved(store, claims, 30)
    assert [Plan.parse_json(text) for text in store.near(asked(), 3, revisions="this")] == [new]
    assert [Plan.parse_json(text) for text in store.near(asked(), 3, revisions="all")] == [old, new]
