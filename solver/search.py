"""Search: what the parts of a solve share.

A part is anything that may find a better plan or a better bound: the constructive schedules, the analytic bounds, an
exact solver. What it claims is not believed: offered orders are simulated anew and the plan made of them is judged by
``validate``; the best legal one is kept. A claimed bound cannot be checked, only refuted: a part that ever claims
more than a legal plan takes has all its bounds struck out.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Protocol

from solver.bounds import LowerBound
from solver.budget import Budget
from solver.lane import Lane
from zbplan.errors import ZbplanError
from zbplan.instance import Orders
from zbplan.plan import PROVEN_GAP, PartRun, Plan
from zbplan.problem import Problem
from zbplan.validate import check

OnIncumbent = Callable[[Plan, float], None]
"""Called with the best plan so far and its bound in milliseconds, whenever one of them gets better."""


class Search:
    """The best plan and bound per placement, and whether to go on.

    Parameters
    ----------
    lanes
        One per placement, with a legal plan and a bound each.
    budget
        What the solve may use up.
    on_incumbent
        Told of the first answer and of every better one.
    """

    def __init__(
        self, problem: Problem, lanes: list[Lane], budget: Budget, on_incumbent: OnIncumbent | None = None
    ) -> None:
        self.problem = problem
        self.lanes = lanes
        self.budget = budget
        self.runs: list[PartRun] = []
        self._until = budget.deadline_s
        self._on_incumbent = on_incumbent
        self._report(self.best)

    @property
    def best(self) -> Lane:
        """The lane with the best plan, the first one of equals."""
        return min(self.lanes, key=lambda lane: lane.plan.metrics.iteration_ms)

    @property
    def answer(self) -> Plan:
        """The best plan with the bound of its placement, and what the parts did."""
        return self.best.answer.with_parts(self.runs)

    def goes_on(self, lane: Lane) -> bool:
        """Return whether a part should go on with a lane: wanted, in time, and not proven to hold nothing better."""
        return not self.budget.cancelled() and self.remaining_s > 0 and self.is_open(lane)

    def is_open(self, lane: Lane) -> bool:
        """Return whether a lane may hold something better than the best plan."""
        return lane.bound_ms < self.best.plan.metrics.iteration_ms * (1 - PROVEN_GAP)

    @property
    def remaining_s(self) -> float:
        """Seconds that the present lane and part have."""
        return self._until - time.monotonic()

    @contextmanager
    def allotted(self, part: float) -> Iterator[None]:
        """Allow only a part of the remaining time within the block."""
        until = self._until
        self._until = min(until, time.monotonic() + part * max(0.0, self.remaining_s))
        try:
            yield
        finally:
            self._until = until

    @contextmanager
    def running(self, part: str) -> Iterator[list[str]]:
        """Note how long a part ran, and how it ended."""
        with running(self.runs, part) as words:
            yield words

    def offer(self, lane: Lane, orders: Orders, method: str) -> bool:
        """Keep orders if they are legal and better than the lane's plan; return whether they were kept."""
        start = lane.plan.provenance.warm_start or lane.plan.provenance.method
        try:
            return self._keep(lane, orders, method, start)
        except ZbplanError:
            return False

    def start_from(self, lane: Lane, plan: Plan) -> str:
        """Offer the orders of a plan of another problem; return what came of them, in words for people."""
        try:
            kept = self._keep(lane, plan.orders(), plan.provenance.method, f"plan {plan.plan_id}")
        except ZbplanError as error:
            return f"not legal here: {error}"
        return "kept" if kept else "no better than the constructive plan"

    def _keep(self, lane: Lane, orders: Orders, method: str, start: str) -> bool:
        """Keep orders if they are better than the lane's plan; raises ``ZbplanError`` if they are not legal."""
        solve_s = time.monotonic() - self.budget.began_s
        plan = Plan.build(self.problem, lane.placement, orders, method=method, warm_start=start, solve_s=solve_s)
        if plan.metrics.iteration_ms >= lane.plan.metrics.iteration_ms:
            return False
        lane.plan = check(plan)
        lane.strike_lies()
        self._report(lane)
        return True

    def raise_bound(self, lane: Lane, bound: LowerBound, part: str) -> None:
        """Keep a bound that a part claims if it is better than the lane's."""
        if part in lane.liars or bound.ticks <= lane.bound.ticks:
            return
        lane.claims[part] = bound
        lane.strike_lies()
        if part not in lane.liars:
            self._report(lane)

    def _report(self, lane: Lane) -> None:
        if self._on_incumbent is not None and lane is self.best:
            self._on_incumbent(lane.answer, lane.bound_ms)


@contextmanager
def running(runs: list[PartRun], part: str) -> Iterator[list[str]]:
    """Note how long a part ran, and how it ended: the last word that it left in the list."""
    began, words = time.monotonic(), ["done"]
    try:
        yield words
    finally:
        ran_s = round(time.monotonic() - began, 3)
        runs.append(PartRun(part=part, ran_s=ran_s, outcome=words[-1]))


class Part(Protocol):
    """One contributor to a solve."""

    def __call__(self, search: Search, lane: Lane) -> None:
        """Offer plans and bounds for a lane while ``search.goes_on(lane)`` and something is left to do."""
