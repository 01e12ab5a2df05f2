"""Lane: what a solve knows of one placement."""

from __future__ import annotations

from dataclasses import dataclass, field

from heuristic import Built
from solver.bounds import LowerBound, lower_bound
from zbplan.instance import Instance
from zbplan.placement import Placement
from zbplan.plan import Plan
from zbplan.problem import Problem
from zbplan.stop import Stop
from zbplan.validate import check


@dataclass
class Lane:
    """One placement of the problem: its instance, the best plan found on it, and the bounds proven and claimed.

    Attributes
    ----------
    proven
        The analytic bound.
    claims
        The best bound that each part claims.
    liars
        Parts that claimed a bound above a legal plan.
    """

    placement: Placement
    instance: Instance
    plan: Plan
    proven: LowerBound
    claims: dict[str, LowerBound] = field(default_factory=dict)
    liars: set[str] = field(default_factory=set)

    @classmethod
    def of(cls, problem: Problem, built: Built, stop: Stop) -> Lane:
        """Return a lane with a constructive plan of a problem, and the analytic bound as far as it comes."""
        instance = problem.instance(built.placement)
        proven = lower_bound(instance, stop)
        plan = Plan.build(problem, built.placement, built.orders, method=built.method)
        return cls(built.placement, instance, check(plan), proven)

    @property
    def ticks(self) -> int:
        """The objective of the best plan."""
        return self.instance.clock.units(self.plan.metrics.iteration_ms)

    @property
    def bound(self) -> LowerBound:
        """The best bound."""
        return max([self.proven, *self.claims.values()], key=lambda bound: bound.ticks)

    @property
    def bound_ms(self) -> float:
        """The best bound in milliseconds."""
        return self.instance.clock.value(self.bound.ticks)

    @property
    def answer(self) -> Plan:
        """The best plan with the best bound."""
        return self.plan.with_bound(self.bound_ms, self.bound.reason)

    def resume(self, answer: Plan) -> None:
        """Take over an earlier answer on this placement: its plan if it is better, its bound if it proves more."""
        if answer.metrics.iteration_ms < self.plan.metrics.iteration_ms:
            self.plan = answer
        if answer.bound.iteration_ms > self.bound_ms:
            self.proven = LowerBound(self.instance.clock.units(answer.bound.iteration_ms), answer.bound.reason)

    def strike_lies(self) -> None:
        """Disbelieve every part that claims more than the plan takes."""
        self.liars |= {part for part, claim in self.claims.items() if claim.ticks > self.ticks}
        self.claims = {part: claim for part, claim in self.claims.items() if part not in self.liars}
