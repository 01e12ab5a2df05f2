"""Problems and plans in a store, for tests."""

from __future__ import annotations

from typing import Any

from api.claims import Claim, Claims
from api.refusal import document
from api.resource import Job
from api.store import Store
from heuristic import construct
from tests.api.servers import problem
from zbplan.plan import Plan
from zbplan.problem import Problem

CRASHED = document("crashed", 500, "The solve crashed", "twice")


def asked(**changes: Any) -> Problem:
    return Problem.parse(problem(**changes))


def added(store: Store, problem: Problem) -> Problem:
    store.add(problem, construct(problem))
    return problem


def claimed(claims: Claims, problem: Problem, lease_s: float = 60) -> Claim:
    claim = claims.claim(problem.key, lease_s)
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
