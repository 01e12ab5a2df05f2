"""Request: what a solve is asked for."""

from __future__ import annotations

from dataclasses import dataclass

from solver.budget import Budget
from solver.portfolio import PARTS
from solver.search import OnIncumbent, Part
from zbplan.problem import Problem
from zbplan.stop import Stop

GRACE_S = 0.25
"""Seconds past the limit that all constructive schedules may take, and then the analytic bounds of each placement: but
for the largest problems they are the same whatever the limit."""

LARGEST = 16_000
"""Devices times microbatches above which schedules have no such grace: each of them takes a tenth of a second."""


@dataclass(frozen=True)
class Request:
    """A problem, and what may be done for its answer.

    Attributes
    ----------
    asked_parts
        What is to try to improve on the constructive plan and the analytic bound; None takes those of the problem's
        method.
    on_incumbent
        Told of the first answer and of every better one.
    """

    problem: Problem
    budget: Budget
    asked_parts: tuple[Part, ...] | None = None
    on_incumbent: OnIncumbent | None = None

    @property
    def parts(self) -> tuple[Part, ...]:
        """What tries to improve on the constructive plan and the analytic bound, in sequence."""
        return PARTS.get(self.problem.method, ()) if self.asked_parts is None else self.asked_parts

    @property
    def at_once(self) -> bool:
        """Whether nothing is to be searched for beyond what takes milliseconds."""
        return self.asked_parts == ()

    @property
    def constructive(self) -> Problem:
        """The problem as the constructive schedules know it: a solver starts from the best of them all."""
        solved = self.problem.method in PARTS
        return self.problem.model_copy(update={"method": "auto"}) if solved else self.problem

    def is_late(self) -> bool:
        """Return whether the first answer has to make do with the schedules that are there."""
        large = self.problem.devices * self.problem.microbatches > LARGEST
        return self.budget.is_spent(grace_s=0.0 if large else GRACE_S)

    def bounding(self) -> Stop:
        """Return what says whether bounds that begin now have to make do with those that are there."""
        return self.budget.leniently(GRACE_S)
