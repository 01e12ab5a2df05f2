"""Solving: what a worker process does with a claimed problem, and how its news reach the store."""

from __future__ import annotations

import logging
import time
from collections.abc import Callable
from pkgutil import resolve_name
from typing import ParamSpec, TypeVar

from api.claims import Claim, Claims
from api.database import OUT_OF_ORDER, database_at
from api.near import reused
from api.refusal import document_of
from api.settings import Settings
from api.store import Store
from solver import Options
from zbplan.errors import ZbplanError
from zbplan.plan import Plan
from zbplan.problem import Problem
from zbplan.validate import check

logger = logging.getLogger(__name__)

P = ParamSpec("P")
T = TypeVar("T")

PATIENCE_S = 1.0
"""How long to wait before the store is asked again."""


def solve_claimed(settings: Settings, claim: Claim) -> None:
    """Solve a problem that this service has claimed; every better plan goes to the store at once."""
    claims = Claims(database_at(settings.database_url))
    problem = _patiently(claims.problem, claim)
    if problem is None:
        return

    def keep(plan: Plan, _bound_ms: float) -> None:
        try:
            claims.improve(claim, check(plan))
        except OUT_OF_ORDER as error:
            logger.warning("the store cannot be used, and may get the next better plan: %s", error)

    try:
        start = _patiently(_start, settings, claim, problem)
        options = Options(threads=settings.threads_per_solver)
        plan = resolve_name(settings.solve)(problem, options=options, warm_start=start, on_incumbent=keep)
        _patiently(claims.finish, claim, check(plan))
    except ZbplanError as error:
        _patiently(claims.fail, claim, document_of(error))


def _start(settings: Settings, claim: Claim, problem: Problem) -> Plan | None:
    """Return the best plan to start from: what an earlier solve of the problem found, or a plan of a near problem."""
    database = database_at(settings.database_url)
    best = Claims(database).best(claim)
    near = Store(database).near(problem, settings.near_plans, revisions="all")
    starts = reused(problem, near if best is None else [best, *near])
    return min(starts, key=lambda plan: plan.metrics.iteration_ms, default=None)


def _patiently(ask: Callable[P, T], *args: P.args, **kwargs: P.kwargs) -> T:
    """Ask or tell the store something, again and again while it is out of order; whoever runs this ends it in time."""
    while True:
        try:
            return ask(*args, **kwargs)
        except OUT_OF_ORDER as error:
            logger.warning("the store cannot be used: %s", error)
            time.sleep(PATIENCE_S)
