"""Partition: cut the layers of a model in stages so that its plan takes the least time within memory."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from heuristic.partition.exhaustive import require_few_cuts
from heuristic.partition.judge import Cut
from heuristic.partition.search import Search
from heuristic.planner import QUICK
from zbplan.errors import Finding, InfeasibleError, InvalidInputError, MethodError
from zbplan.placement import Placement, stages_in
from zbplan.problem import Problem


@dataclass(frozen=True, eq=False)
class Candidate:
    """The cuts for one placement, each None where no such cut has a plan.

    Attributes
    ----------
    best
        The cut with the best plan.
    even, shorter
        The even cut, and that with one layer fewer in the first and in the last stage.
    """

    placement: Placement
    best: Cut | None
    even: Cut | None
    shorter: Cut | None


@dataclass(frozen=True, eq=False)
class Partition:
    """The cuts of a problem's layers for each placement; at least one has a plan."""

    candidates: tuple[Candidate, ...]

    @property
    def best(self) -> Cut:
        """The cut with the best plan, for the first placement of equals."""
        return min((each.best for each in self.candidates if each.best is not None), key=_iteration_ms)


def partition(
    problem: Problem, *, placements: Sequence[Placement] | None = None, effort: int = QUICK, exact: bool = False
) -> Partition:
    """Return the best cuts of a problem's open layers that are found.

    Parameters
    ----------
    placements
        Those of the problem's placements to cut for; None takes all.
    effort
        Ops that the planner may schedule for each cut that is tried; several times as many for the best ones.
    exact
        True plans every cut that may be the best one, instead of moving boundaries of good ones.

    Raises
    ------
    InfeasibleError
        If no cut that was found fits into memory; it says what would be enough for one of them.
    MethodError
        If the named method has no plan for any of the placements.
    InvalidInputError
        If there are no layers to cut, or too many cuts for an exact search.
    """
    layers, compared = problem.open_layers, placements or problem.placements
    if layers is None:
        raise InvalidInputError([Finding("$.placement", f"{problem.placement!r}", "'auto' and a profile with layers")])
    for placement in compared if exact else ():
        require_few_cuts(layers.count, stages_in(placement))
    searches = [Search(problem, placement, effort=effort) for placement in compared]
    for search in sorted(searches, key=_best_ms):
        search.exhaust(_goal_ms(searches)) if exact else search.improve(_goal_ms(searches))
    for search in sorted(searches, key=_best_ms):
        search.refine(_goal_ms(searches))
    if all(search.best is None for search in searches):
        raise _refusal(searches)
    placed = [Candidate(each.judge.placement, each.best, each.even, each.shorter) for each in searches]
    return Partition(tuple(placed))


def _best_ms(search: Search) -> float:
    return search.best_ms


def _goal_ms(searches: Sequence[Search]) -> float:
    return min(map(_best_ms, searches))


def _refusal(searches: Sequence[Search]) -> InfeasibleError | MethodError:
    """Return why there is no cut: how the method is refused, or the limits that raise memory the least."""
    refusals = [refusal for search in searches for refusal in search.judge.refusals]
    methods = [refusal for refusal in refusals if isinstance(refusal, MethodError)]
    short = [refusal for refusal in refusals if isinstance(refusal, InfeasibleError)]
    return methods[0] if methods else min(short, key=_missing_bytes)


def _missing_bytes(refusal: InfeasibleError) -> float:
    pairs = zip(refusal.limit_bytes, refusal.smallest_limit_bytes, strict=True)
    return max(smallest - (0.0 if limit is None else limit) for limit, smallest in pairs)


def _iteration_ms(cut: Cut) -> float:
    return cut.iteration_ms
