"""Judge: what the scheduler makes of cuts for one placement, each planned once."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass

from heuristic.catalog import Built, best_per_placement
from heuristic.list_schedule import Policy, list_schedule, task_of
from heuristic.objective import iteration
from heuristic.variation import Variation
from zbplan.errors import InfeasibleError, MethodError
from zbplan.placement import Placement
from zbplan.problem import Problem
from zbplan.simulate import simulate


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

    @property
    def iteration_ms(self) -> float:
        """What the objective minimises."""
        return self.problem.instance().clock.value(self.built.measures.iteration)


class Judge:
    """Plans cuts of a problem for a placement.

    Parameters
    ----------
    effort
        Ops that the planner may schedule for each cut.
    """

    def __init__(self, problem: Problem, placement: Placement, *, effort: int) -> None:
        self.problem = problem
        self.placement = placement
        self._effort = effort
        self._planned: dict[tuple[int, ...], Cut | None] = {}
        self.refusals: list[InfeasibleError | MethodError] = []

    def plan(self, starts: Iterable[int]) -> Cut | None:
        """Return a cut with its plan; None where it has none, and ``refusals`` says why."""
        cut = tuple(map(int, starts))
        if cut not in self._planned:
            self._planned[cut] = self._built(cut)
        return self._planned[cut]

    def knows(self, starts: Iterable[int]) -> bool:
        """Return whether a cut was planned before."""
        return tuple(map(int, starts)) in self._planned

    def best(self, cuts: Iterable[Iterable[int]]) -> Cut | None:
        """Return the cut with the best plan, the first one of equals; None if none has one."""
        planned = [cut for cut in map(self.plan, cuts) if cut is not None]
        return min(planned, key=lambda cut: cut.iteration_ms, default=None)

    def _built(self, starts: tuple[int, ...]) -> Cut | None:
        try:
            (built,) = best_per_placement(self.problem.cut(starts, self.placement), effort=self._effort)
        except (InfeasibleError, MethodError) as error:
            self.refusals.append(error)
            return None
        return Cut(starts, built)


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
