"""Search: a balanced cut for a placement, the usual ones, then boundaries moved while the scheduler gains."""

from __future__ import annotations

import numpy as np

from heuristic.partition.balance import balanced, descend, order, slides
from heuristic.partition.exhaustive import every_cut
from heuristic.partition.fitting import fitting
from heuristic.partition.judge import Cut, Judge, Rescheduler
from heuristic.partition.weights import TICKS_PER_MS, FloatArray, Weights
from zbplan.instance import IntArray
from zbplan.layers import even_starts, shorter_ends
from zbplan.placement import Placement
from zbplan.problem import Problem
from zbplan.stop import Stop, never

EFFORT = 3_000_000
"""Ops to schedule for all cuts that are tried while boundaries move, about."""

SKETCH = 25
"""How often the ops of a problem are scheduled for a cut, beside the planner's effort, about."""

WITHIN = 1.05
"""How far the best cut for a placement may be from the best of all for its boundaries to move."""

RAMPS = (0.25, 0.0, 1.0)
"""How many times per device the largest stage may count beside what the busiest device does in an iteration."""

LOOKED_AT, PLANNED = 48, 4
"""Neighbours of a cut that are rescheduled, and those that are planned anew, the more promising first."""


class Search:
    """The search for the best cut of a problem's layers for one placement, in steps that may each find a better one.

    Parameters
    ----------
    effort
        Ops that the planner may schedule for each cut.
    stop, hurry
        Asked now and then whether to end, and whether to make do with what is there even for the first cut.

    Attributes
    ----------
    best
        The cut with the best plan so far; None if no cut has one.
    even, shorter
        The even cut, and that with one layer fewer in the first and in the last stage; None where it has no plan, and
        before ``widen``.
    hopeless
        Whether it is proven that no cut fits into memory.
    """

    def __init__(
        self, problem: Problem, placement: Placement, *, effort: int, stop: Stop = never, hurry: Stop = never
    ) -> None:
        self.problem = problem
        self.judge = Judge(problem, placement, effort=effort, stop=stop, hurry=hurry)
        self.weights = Weights.of(problem, placement)
        self.best: Cut | None = None
        self.even: Cut | None = None
        self.shorter: Cut | None = None
        self.hopeless = False
        self.ramps = [part * problem.devices / problem.microbatches for part in RAMPS]
        ops = 3 * self.weights.stages * problem.microbatches
        self.rounds = max(1, EFFORT // (SKETCH * ops + effort) // PLANNED)
        self._balanced: list[IntArray] = []
        self._stop = stop
        self._hurry = hurry

    @property
    def best_ms(self) -> float:
        """What the best plan so far takes; infinity if there is none."""
        return float("inf") if self.best is None else self.best.iteration_ms

    def begin(self) -> None:
        """Plan one balanced cut."""
        self._balanced = balanced(self.weights, self.ramps, hurry=self._hurry)
        self._keep(self.judge.plan(self._balanced[0]))

    def widen(self) -> None:
        """Plan the usual cuts, and those that are balanced otherwise."""
        layers, stages = self.weights.layers, self.weights.stages
        shorter = shorter_ends(layers, stages)
        self.even = self.judge.plan(even_starts(layers, stages))
        self.shorter = None if shorter is None else self.judge.plan(shorter)
        self._keep(self.even, self.shorter)
        self._keep(*map(self.judge.plan, self._balanced))
        if self.best is None and self.weights.missing(np.array(self._balanced)).any(axis=1).all():
            self._fit()

    def _fit(self) -> None:
        """Look among all cuts for one that fits into memory, and plan balanced ones near it."""
        found = fitting(self.weights)
        self.hopeless = found.exhausted and found.starts is None
        if found.starts is not None:
            near = [descend(self.weights, found.starts, ramp) for ramp in self.ramps]
            self._keep(*map(self.judge.plan, near))

    def move(self, goal_ms: float) -> bool:
        """Move boundaries of the best cut once where it may come to reach a goal; return whether its plan is better."""
        if self.best is None or self.best_ms > WITHIN * goal_ms:
            return False
        before_ms = self.best_ms
        self._keep(self.judge.best(self._promising(self.best, min(goal_ms, before_ms))))
        return self.best_ms < before_ms

    def refine(self, goal_ms: float, *, fair: bool = False) -> None:
        """Search longer for the plan of the best cut near a goal; if fair, for those of the usual cuts as well."""
        if (
            self.best is not None
            and self.best_ms <= WITHIN * goal_ms
            and self._least_ms(np.array([self.best.starts]))[0] < goal_ms
        ):
            chosen = [self.best, *((self.even, self.shorter) if fair else ())]
            refined = {cut.starts: self.judge.refined(cut) for cut in chosen if cut is not None}
            self.even, self.shorter = (cut and refined.get(cut.starts, cut) for cut in (self.even, self.shorter))
            self._keep(*refined.values())

    def exhaust(self, goal_ms: float) -> None:
        """Plan every cut that fits into memory and may reach a goal.

        Raises
        ------
        InvalidInputError
            If there are too many cuts.
        """
        cuts = self._reaching(every_cut(self.weights.layers, self.weights.stages), goal_ms)
        for starts in cuts[order(self.weights, cuts)]:
            if self._least_ms(starts[None])[0] >= min(goal_ms, self.best_ms):
                return
            self._keep(self.judge.plan(starts))

    def _keep(self, *cuts: Cut | None) -> None:
        """Keep the best of some cuts where it is better than the best so far."""
        for cut in cuts:
            if cut is not None and cut.iteration_ms < self.best_ms:
                self.best = cut

    def _promising(self, cut: Cut, goal_ms: float) -> list[IntArray]:
        """Return the cuts near one that fit into memory and may reach a goal, the more promising first."""
        near = self._reaching(slides(self.weights, np.array(cut.starts)), goal_ms)
        near = near[order(self.weights, near, self.ramps[0])]
        new = [starts for starts in near if not self.judge.knows(starts)][:LOOKED_AT]
        reschedule = Rescheduler(cut, self.problem)
        looked_at = [(reschedule.iteration_ms(starts), place) for place, starts in enumerate(new) if not self._stop()]
        return [new[place] for _, place in sorted(looked_at)[:PLANNED]]

    def _reaching(self, cuts: IntArray, goal_ms: float) -> IntArray:
        fits = self.weights.missing(cuts).max(axis=1) == 0
        found: IntArray = cuts[fits & (self._least_ms(cuts) < goal_ms)]
        return found

    def _least_ms(self, cuts: IntArray) -> FloatArray:
        """Return what the busiest device works: no plan takes less."""
        least_ms: FloatArray = self.weights.work(cuts).max(axis=1) / TICKS_PER_MS * self.problem.microbatches
        return least_ms
