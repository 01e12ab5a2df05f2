"""Search: what the parts of a solve share.

A part is anything that may find a better plan or a better bound: the constructive schedules, the analytic bounds, an
exact solver. What it claims is not believed: offered orders are simulated anew and the plan made of them is judged by
``validate``; the best legal one is kept.
"""

from __future__ import annotations

import time
from collections.abc import Callable
from dataclasses import dataclass
from typing import Protocol

from solver.bounds import LowerBound
from zbplan.errors import ZbplanError
from zbplan.instance import Instance, Orders
from zbplan.placement import Placement
from zbplan.plan import Plan
from zbplan.problem import Problem
from zbplan.validate import check

OnIncumbent = Callable[[Plan, float], None]
"""Called with the best plan so far and its bound in milliseconds, whenever one of them gets better."""


class Event(Protocol):
    """Something that can say that the answer is no longer wanted, such as ``threading.Event``."""

    def is_set(self) -> bool:
        """Return whether to stop."""
        ...


@dataclass
class Lane:
    """One placement of the problem: its instance, and the best plan and bound found on it."""

    placement: Placement
    instance: Instance
    plan: Plan
    bound: LowerBound

    @property
    def bound_ms(self) -> float:
        """The best bound in milliseconds."""
        return self.instance.clock.value(self.bound.ticks)

    @property
    def answer(self) -> Plan:
        """The best plan with the best bound."""
        return self.plan.with_bound(self.bound_ms, self.bound.reason)


class Search:
    """The best plan and bound per placement, and whether to go on.

    Parameters
    ----------
    lanes
        One per placement, with a legal plan and a bound each.
    time_limit_s
        Wall-clock seconds from now after which ``finished`` is true.
    cancelled
        Asked now and then whether to stop.
    on_incumbent
        Told of the first answer and of every better one.
    """

    def __init__(
        self,
        problem: Problem,
        lanes: list[Lane],
        *,
        time_limit_s: float,
        cancelled: Callable[[], bool],
        on_incumbent: OnIncumbent | None,
    ) -> None:
        self.problem = problem
        self.lanes = lanes
        self._began = time.monotonic()
        self._deadline = self._began + time_limit_s
        self._cancelled = cancelled
        self._on_incumbent = on_incumbent
        self._report(self.best)

    @property
    def best(self) -> Lane:
        """The lane with the best plan, the first one of equals."""
        return min(self.lanes, key=lambda lane: lane.plan.metrics.iteration_ms)

    @property
    def finished(self) -> bool:
        """Whether to stop: cancelled, out of time, or proven that nothing better exists on any lane."""
        return self._cancelled() or self.remaining_s <= 0 or self._proven

    @property
    def remaining_s(self) -> float:
        """Seconds until the time limit."""
        return self._deadline - time.monotonic()

    @property
    def _proven(self) -> bool:
        plan = self.best.plan
        return all(plan.with_bound(lane.bound_ms, "").bound.proven_optimal for lane in self.lanes)

    def offer(self, lane: Lane, orders: Orders, method: str) -> bool:
        """Keep orders if they are legal and better than the lane's plan; return whether they were kept."""
        solve_s = time.monotonic() - self._began
        start = lane.plan.provenance.warm_start or lane.plan.provenance.method
        try:
            plan = Plan.build(self.problem, lane.placement, orders, method=method, warm_start=start, solve_s=solve_s)
            if plan.metrics.iteration_ms >= lane.plan.metrics.iteration_ms:
                return False
            lane.plan = check(plan)
        except ZbplanError:
            return False
        self._report(lane)
        return True

    def raise_bound(self, lane: Lane, bound: LowerBound) -> None:
        """Keep a bound if it is better than the lane's."""
        if bound.ticks > lane.bound.ticks:
            lane.bound = bound
            self._report(lane)

    def _report(self, lane: Lane) -> None:
        if self._on_incumbent is not None and lane is self.best:
            self._on_incumbent(lane.answer, lane.bound_ms)


class Part(Protocol):
    """One contributor to a solve."""

    def __call__(self, search: Search, lane: Lane) -> None:
        """Offer plans and bounds for a lane until there is nothing left to do or ``search.finished``."""
        ...
