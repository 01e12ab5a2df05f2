"""Judge: what the scheduler makes of cuts for one placement, each planned once."""

from __future__ import annotations

import time
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, replace
from functools import cached_property

from heuristic.catalog import PLANNER, Built, best_per_placement, legal_named, require_feasible
from heuristic.list_schedule import Policy, list_schedule, task_of
from heuristic.objective import at_best, iteration
from heuristic.planner import improvements
from heuristic.variation import Variation
from zbplan.errors import InfeasibleError, MethodError
from zbplan.instance import Orders
from zbplan.placement import Placement
from zbplan.problem import Problem
from zbplan.simulate import measure, simulate
from zbplan.stop import Stop, never
from zbplan.tighten import tighten

LONGER = 15
"""How many times as long as for a cut that is tried the search goes on for one that is chosen."""

FREE = ("auto", "heuristic")
"""Methods that may make any schedule."""


@dataclass(frozen=True, eq=False)
class Cut:
    """A cut of the layers, with the best constructive plan for it.

    Attributes
    ----------
    starts
        The first layer of each stage.
    built
        The plan, of the problem that is left once the layers are cut.
    """

    starts: tuple[int, ...]
    built: Built

    @property
    def problem(self) -> Problem:
        """The problem that is left once the layers are cut."""
        return self.built.problem

    @property
    def placement(self) -> Placement:
        """Which stages each device holds."""
        return self.built.placement

    @cached_property
    def iteration_ms(self) -> float:
        """What the objective minimises."""
        return self.problem.instance().clock.value(self.built.measures.iteration)


class Judge:
    """Plans cuts of a problem for a placement.

    Parameters
    ----------
    effort
        Ops that the planner may schedule for each cut.
    stop
        Asked between cuts whether to end: then no other one is planned.
    hurry
        Asked now and then whether to search no further for the plan of the cut at hand.
    """

    def __init__(
        self, problem: Problem, placement: Placement, *, effort: int, stop: Stop = never, hurry: Stop = never
    ) -> None:
        self.problem = problem
        self.placement = placement
        self._effort = effort
        self._stop = stop
        self._hurry = hurry
        self._planned: dict[tuple[int, ...], Cut | None] = {}
        self.refusals: list[InfeasibleError | MethodError] = []

    def plan(self, starts: Iterable[int]) -> Cut | None:
        """Return a cut with its plan; None where it has none, and ``refusals`` says why, or the search has ended."""
        cut = tuple(map(int, starts))
        if cut not in self._planned and not self._stop():
            self._planned[cut] = self._built(cut)
        return self._planned.get(cut)

    def knows(self, starts: Iterable[int]) -> bool:
        """Return whether a cut was planned before."""
        return tuple(map(int, starts)) in self._planned

    def best(self, cuts: Iterable[Iterable[int]]) -> Cut | None:
        """Return the cut with the best plan, the first one of equals; None if none has one."""
        planned = [cut for cut in map(self.plan, cuts) if cut is not None]
        return min(planned, key=lambda cut: cut.iteration_ms, default=None)

    def refined(self, cut: Cut) -> Cut:
        """Return a cut with the plan that a longer search makes of its plan."""
        if self.problem.method not in FREE:
            return cut
        began_s, instance = time.perf_counter(), cut.problem.instance()
        better = [*improvements(instance, [cut.built.orders], effort=LONGER * self._effort, stop=self._is_late)]
        return replace(cut, built=_built(cut.problem, better[-1], began_s)) if better else cut

    def _is_late(self) -> bool:
        return self._stop() or self._hurry()

    def _built(self, starts: tuple[int, ...]) -> Cut | None:
        problem = self.problem.cut(starts, self.placement)
        try:
            return Cut(starts, self._sketched(problem) if problem.method in FREE else best_per_placement(problem)[0])
        except (InfeasibleError, MethodError) as error:
            self.refusals.append(error)
            return None

    def _sketched(self, problem: Problem) -> Built:
        """Return the best of the named schedules and a search from them: less than the catalog does, for many cuts."""
        require_feasible(problem, self.placement)
        began_s, instance = time.perf_counter(), problem.instance()
        named = sorted(legal_named(instance, stop=self._is_late), key=lambda orders: at_best(instance, orders))
        orders = [*named[:1], *improvements(instance, named, effort=self._effort, stop=self._is_late)][-1]
        return _built(problem, orders, began_s)


def _built(problem: Problem, orders: Orders, began_s: float) -> Built:
    instance, (placement,) = problem.instance(), problem.placements
    measures = measure(instance, tighten(instance, orders))
    return Built(problem, placement, PLANNER, orders, measures, 1000 * (time.perf_counter() - began_s))


class Rescheduler:
    """Tells what cuts near a planned one take, in a millisecond each: by the same sequence of ops, as memory allows."""

    def __init__(self, cut: Cut, problem: Problem) -> None:
        instance = cut.problem.instance()
        self._problem = problem
        self._placement = cut.placement
        self._policy: Policy = Variation(instance).like(simulate(instance, cut.built.orders))

    def iteration_ms(self, starts: Sequence[int]) -> float:
        """Return what a cut that fits into memory takes; infinity if it does not fit."""
        instance = self._problem.cut(starts, self._placement).instance()
        if (instance.room < instance.smallest_room).any():
            return float("inf")
        return instance.clock.value(iteration(instance, list_schedule(task_of(instance), self._policy)))
