"""Claims, on real databases of both kinds."""

from __future__ import annotations

from concurrent.futures import ThreadPoolExecutor

from api.claims import ATTEMPTS, OWNERS, Claims
from api.database import Database
from api.statements import Found
from api.store import Store
from heuristic import construct
from tests.api.servers import problem
from tests.api.stored import CRASHED, added, asked, bounded, claimed, job, plan_of
from zbplan.plan import Plan


def test_problem_comes_back_as_it_was(store: Store, claims: Claims) -> None:
    profile = {**problem()["profile"], "name": "caf\u00e9 \ud800", "environment": {"device": "A100"}}
    new = added(store, asked(profile=profile, memory_limit=[3, 3, 3, 3.5]))
    assert claims.problem(claimed(claims, new)) == new


def test_one_of_many_claims_wins(store: Store, claims: Claims, database_url: str) -> None:
    new = added(store, asked())
    others = [Database(database_url) for _ in range(4)]
    everyone = [claims, *map(Claims, others)]
    with ThreadPoolExecutor(8) as crowd:
        won = list(crowd.map(lambda at: everyone[at % 5].claim(new.key, 60), range(20)))
    for other in others:
        other.close()
    (claim,) = [claim for claim in won if claim is not None]
    assert claims.problem(claim) == new
    assert job(store, new).status == "solving"


def test_better_plan_and_better_bound_are_kept_and_others_not(store: Store, claims: Claims) -> None:
    new = asked(memory_limit=None)
    worst, better = construct(new.model_copy(update={"method": "gpipe"})), construct(new)
    assert worst.metrics.iteration_ms > better.metrics.iteration_ms
    store.add(new, worst)
    claim = claimed(claims, new)
    for offered, kept in (
        (bounded(better, 1), bounded(better, 1)),
        (bounded(better, 2), bounded(better, 2)),
        (bounded(better, 1), bounded(better, 2)),
        (bounded(worst, 3), bounded(better, 2)),
    ):
        claims.improve(claim, Found.of(offered))
        assert plan_of(store, new) == kept


def test_finish_keeps_the_best_plan(store: Store, claims: Claims) -> None:
    new = added(store, asked())
    claim = claimed(claims, new)
    best = bounded(construct(new), 5)
    claims.improve(claim, Found.of(best))
    claims.finish(claim, Found.of(bounded(best, 4)))
    assert plan_of(store, new) == best
    found = job(store, new)
    assert found.status == "done"
    assert found.finished_at is not None


def test_what_comes_after_a_cancel_is_not_kept(store: Store, claims: Claims) -> None:
    new = added(store, asked())
    claim = claimed(claims, new)
    store.cancel(new.key)
    before = job(store, new)
    assert before.status == "cancelled"
    claims.improve(claim, Found.of(bounded(construct(new), 5)))
    claims.finish(claim, Found.of(bounded(construct(new), 5)))
    claims.lost(claim, CRASHED)
    claims.fail(claim, CRASHED)
    assert job(store, new) == before


def test_lost_worker_is_forgiven_until_the_last_attempt(store: Store, claims: Claims) -> None:
    new = added(store, asked())
    for attempt in range(1, ATTEMPTS + 1):
        claims.lost(claimed(claims, new), CRASHED)
        assert job(store, new).status == ("queued" if attempt < ATTEMPTS else "failed")
    assert job(store, new).error == CRASHED.to_bytes()
    assert plan_of(store, new) == construct(new)


def test_overrun_is_done(store: Store, claims: Claims) -> None:
    new = added(store, asked())
    claims.overrun(claimed(claims, new))
    assert job(store, new).status == "done"


def test_lease_that_runs_out_is_taken_up_and_its_holder_can_change_nothing(store: Store, claims: Claims) -> None:
    new = added(store, asked())
    late, kept = claimed(claims, new, lease_s=-1), claimed(claims, added(store, asked()))
    assert claims.renew([late, kept], -1) == {late, kept}
    assert claims.renew([kept], 60) == {kept}
    assert claims.reap() == [new.key]
    assert store.queued() == [new.key]
    second = claimed(claims, new)
    before = job(store, new)
    assert claims.renew([late, second], 60) == {second}
    assert claims.problem(late) is None
    claims.overrun(late)
    claims.release(late)
    claims.improve(late, Found.of(bounded(construct(new), 5)))
    claims.finish(late, Found.of(bounded(construct(new), 5)))
    claims.lost(late, CRASHED)
    claims.fail(late, CRASHED)
    claims.reap()
    assert job(store, new) == before
    assert store.progress(new.key, before.plan or 0) == []


def test_solve_whose_services_all_die_fails_in_the_end(store: Store, claims: Claims) -> None:
    new = added(store, asked())
    for owner in range(1, OWNERS + 1):
        claimed(claims, new, lease_s=-1)
        claims.reap()
        assert job(store, new).status == ("queued" if owner < OWNERS else "failed")
    error = job(store, new).error
    assert error is not None
    assert b"urn:zbplan:error:crashed" in error


def test_released_problem_has_lost_no_attempt(store: Store, claims: Claims) -> None:
    new = added(store, asked())
    for _ in range(ATTEMPTS + 1):
        claims.release(claimed(claims, new))
        assert job(store, new).status == "queued"
    claims.lost(claimed(claims, new), CRASHED)
    assert job(store, new).status == "queued"


def test_best_plan_of_a_claim_is_the_one_to_start_from(store: Store, claims: Claims) -> None:
    new = added(store, asked())
    claim = claimed(claims, new)
    claims.improve(claim, Found.of(bounded(construct(new), 5)))
    best = claims.best(claim)
    assert best is not None
    assert Plan.parse_json(best) == bounded(construct(new), 5)
    store.cancel(new.key)
    assert claims.best(claim) is None
