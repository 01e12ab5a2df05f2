"""Search: the usual cuts and the best balanced one for a placement, then boundaries moved while the scheduler gains."""

from __future__ import annotations

import numpy as np

from heuristic.partition.balance import balanced, order, slides
from heuristic.partition.exhaustive import every_cut
from heuristic.partition.judge import Cut, Judge, Rescheduler
from heuristic.partition.weights import TICKS_PER_MS, FloatArray, Weights
from zbplan.instance import IntArray
from zbplan.layers import even_starts, shorter_ends
from zbplan.placement import Placement
from zbplan.problem import Problem

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
    """The search for the best cut of a problem's layers for one placement.

    Parameters
    ----------
    effort
        Ops that the planner may schedule for each cut.

    Attributes
    ----------
    even, shorter
        The even cut, and that with one layer fewer in the first and in the last stage; None where it has no plan.
    best
        The cut with the best plan so far; None if no cut has one.
    """

    def __init__(self, problem: Problem, placement: Placement, *, effort: int) -> None:
        self.problem = problem
        self.judge = Judge(problem, placement, effort=effort)
        self.weights = Weights.of(problem, placement)
        even = even_starts(self.weights.layers, self.weights.stages)
        shorter = shorter_ends(self.weights.layers, self.weights.stages)
        usual = [even] if shorter is None else [even, shorter]
        self.even = self.judge.plan(even)
        self.shorter = None if shorter is None else self.judge.plan(shorter)
        ops = 3 * self.weights.stages * problem.microbatches
        self._rounds = max(1, EFFORT // (SKETCH * ops + effort) // PLANNED)
        self.ramps = [part * problem.devices / problem.microbatches for part in RAMPS]
        self.best = self.judge.best([*usual, *(balanced(self.weights, ramp) for ramp in self.ramps)])

    @property
    def best_ms(self) -> float:
        """What the best plan so far takes; infinity if there is none."""
        return float("inf") if self.best is None else self.best.iteration_ms

    def improve(self, goal_ms: float) -> None:
        """Move boundaries of the best cut while that makes its plan better and may still reach a goal."""
        for _ in range(self._rounds):
            if self.best is None or self.best_ms > WITHIN * goal_ms:
                return
            better = self.judge.best(self._promising(self.best, min(goal_ms, self.best_ms)))
            if better is None or better.iteration_ms >= self.best_ms:
                return
            self.best = better

    def refine(self, goal_ms: float) -> None:
        """Search longer for the plans of the best cut and of the usual ones, to compare like with like, near a goal."""
        if (
            self.best is not None
            and self.best_ms <= WITHIN * goal_ms
            and self._least_ms(np.array([self.best.starts]))[0] < goal_ms
        ):
            named = (self.best, self.even, self.shorter)
            refined = {cut.starts: self.judge.refined(cut) for cut in named if cut is not None}
            self.best, self.even, self.shorter = (None if cut is None else refined[cut.starts] for cut in named)
            self.best = min(refined.values(), key=lambda cut: cut.iteration_ms)

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
            self.best = self.judge.best([starts, *([] if self.best is None else [self.best.starts])])

    def _promising(self, cut: Cut, goal_ms: float) -> list[IntArray]:
        """Return the cuts near one that fit into memory and may reach a goal, the more promising first."""
        near = self._reaching(slides(self.weights, np.array(cut.starts)), goal_ms)
        near = near[order(self.weights, near, self.ramps[0])]
        new = [starts for starts in near if not self.judge.knows(starts)][:LOOKED_AT]
        return sorted(new, key=Rescheduler(cut, self.problem).iteration_ms)[:PLANNED]

    def _reaching(self, cuts: IntArray, goal_ms: float) -> IntArray:
        fits = self.weights.missing(cuts).max(axis=1) == 0
        found: IntArray = cuts[fits & (self._least_ms(cuts) < goal_ms)]
        return found

    def _least_ms(self, cuts: IntArray) -> FloatArray:
        """Return what the busiest device works: no plan takes less."""
        least_ms: FloatArray = self.weights.work(cuts).max(axis=1) / TICKS_PER_MS * self.problem.microbatches
        return least_ms
