"""Solving: what a worker process does with a claimed problem, and how its news reach the store."""

from __future__ import annotations

import logging
from contextlib import suppress
from pkgutil import resolve_name

from api.claims import Claim, Claims
from api.database import OUT_OF_ORDER, database_at
from api.near import reused
from api.refusal import Refusal, document, document_of
from api.settings import Settings
from api.statements import Found
from api.store import Store
from api.unsent import Place, Unsent
from solver import Options
from zbplan.errors import InvalidInputError, ZbplanError
from zbplan.plan import Plan
from zbplan.problem import Problem
from zbplan.validate import check

logger = logging.getLogger(__name__)

DAMAGED = document(
    "damaged", 500, "The stored problem is damaged", "found it unreadable, or another one; needed another POST of it"
)


def solve_claimed(settings: Settings, claim: Claim, place: Place) -> Found | None:
    """Return the best plan of a problem that this service has claimed, ready to be stored; None if the claim is gone.

    Every better plan on the way goes to the store at once. The last one is left to the caller, who has all the time
    that the store may need, and so is one that the store could not take.

    Raises
    ------
    Refusal
        If there is none.
    OUT_OF_ORDER
        If the store is out of order before the solve begins.
    """
    claims = Claims(database_at(settings.database_url))
    problem = _problem(claims, claim)
    if problem is None:
        return None

    try:
        start = _start(settings, claim, problem)
        with Unsent.at(place) as unsent:
            plan = resolve_name(settings.solve)(
                problem,
                options=Options(threads=settings.threads_per_solver),
                warm_start=start,
                on_incumbent=lambda plan, _: _keep(claims, claim, plan, unsent),
            )
        return Found.of(check(plan))
    except ZbplanError as error:
        raise Refusal(document_of(error)) from None


def _keep(claims: Claims, claim: Claim, plan: Plan, unsent: Unsent) -> None:
    unsent.put(found := Found.of(check(plan)))
    try:
        claims.improve(claim, found)
    except OUT_OF_ORDER as error:
        logger.warning("the store cannot be used, and will get this plan later, or a better one: %s", error)
    else:
        unsent.clear()


def _problem(claims: Claims, claim: Claim) -> Problem | None:
    """Return what is to be solved; None if the claim is gone. Raises ``Refusal`` if it is not what was stored."""
    with suppress(InvalidInputError):
        problem = claims.problem(claim)
        if problem is None or problem.key == claim.key:
            return problem
    raise Refusal(DAMAGED)


def _start(settings: Settings, claim: Claim, problem: Problem) -> Plan | None:
    """Return the best plan to start from: what an earlier solve of the problem found, or a plan of a near problem."""
    database = database_at(settings.database_url)
    best = Claims(database).best(claim)
    near = Store(database).near(problem, settings.near_plans, revisions="all")
    starts = reused(problem, near if best is None else [best, *near])
    return min(starts, key=lambda plan: plan.metrics.iteration_ms, default=None)
