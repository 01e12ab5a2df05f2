"""Cuts: the best plan so far of a problem that leaves its layers open, whichever cut of them it stands on."""

from __future__ import annotations

from collections.abc import Sequence

from solver.search import OnIncumbent
from zbplan.placement import Placement
from zbplan.plan import Plan
from zbplan.problem import Problem


class CutAnswers:
    """The plans of some cuts of a problem's open layers, as answers to the problem; the best one counts.

    Parameters
    ----------
    plan, starts
        The first one, and how its layers are cut.
    on_incumbent
        Told of the first answer, of every better one, and of better bounds.

    Attributes
    ----------
    best
        The best answer.
    plan
        The same as a plan of its cut, whose stages are given.
    """

    best: Plan
    plan: Plan

    def __init__(
        self, problem: Problem, plan: Plan, starts: Sequence[int], on_incumbent: OnIncumbent | None = None
    ) -> None:
        self._problem = problem
        self._on_incumbent = on_incumbent
        self._keep(plan, starts)

    def offer(self, plan: Plan, starts: Sequence[int]) -> None:
        """Keep the plan of a cut if it takes less than the best one, or as much and its bound proves more."""
        if _rank(plan) < _rank(self.best):
            self._keep(plan, starts)

    def _keep(self, plan: Plan, starts: Sequence[int]) -> None:
        self.plan, self.best = plan, plan.answering(self._problem, starts)
        if self._on_incumbent is not None:
            self._on_incumbent(self.best, self.best.bound.iteration_ms)

    def settle(self, plan: Plan) -> None:
        """Take the last word on the best plan: bounds that it was offered with may have been struck out since."""
        if plan.plan_id == self.plan.plan_id:
            self.plan, self.best = plan, plan.answering(self._problem, self.starts)

    @property
    def starts(self) -> tuple[int, ...]:
        """How the layers are cut in the best answer."""
        return tuple(self.best.requires.starts or ())

    def on(self, starts: Sequence[int], placement: Placement) -> Plan | None:
        """Return the best plan if it stands on a cut, else None."""
        same = self.starts == tuple(starts) and self.best.placement == placement
        return self.plan if same else None


def _rank(plan: Plan) -> tuple[float, float]:
    return plan.metrics.iteration_ms, -plan.bound.iteration_ms
