"""Partition: cut the layers of a model in stages so that its plan takes the least time within memory."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass

from heuristic.partition.exhaustive import require_few_cuts
from heuristic.partition.judge import Cut
from heuristic.partition.search import Search
from heuristic.planner import QUICK
from zbplan.errors import Finding, InfeasibleError, InvalidInputError, MethodError
from zbplan.placement import Placement, stages_in
from zbplan.problem import Problem
from zbplan.stop import Stop, never

HOPELESS = "memory limit too small for any cut of the layers; on the cut that came closest"
NOT_FOUND = "no cut of the layers was found that fits into memory_limit, though not all were tried; on the closest one"


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
        If no cut that was found fits into memory; it says what would be enough for one of them, and whether it is
        proven that none fits.
    MethodError
        If the named method has no plan for any of the placements.
    InvalidInputError
        If there are no layers to cut, or too many cuts for an exact search.
    """
    compared = placements or problem.placements
    race = Race(problem, compared, effort=effort, exact=exact, fair=True)
    for _ in race.steps():
        pass
    return Partition(tuple(map(_candidate, race.searches)))


def better_cuts(problem: Problem, *, effort: int = QUICK, stop: Stop = never, hurry: Stop = never) -> Iterator[Cut]:
    """Yield a good cut of a problem's open layers at once, then each better one that ``partition`` comes across.

    Parameters
    ----------
    stop
        Asked now and then, after the first cut, whether to end.
    hurry
        Asked all the time whether to end with the first cut that has a plan, and with less search for both.

    Raises
    ------
    InfeasibleError, MethodError, InvalidInputError
        As ``partition`` does.
    """
    race = Race(problem, problem.placements, effort=effort, stop=stop, hurry=hurry)
    best: Cut | None = None
    for _ in race.steps():
        if race.best_ms < (float("inf") if best is None else best.iteration_ms):
            best = race.best
            yield best
        if race.stopped():
            return


def first_cuts(problem: Problem, *, effort: int = QUICK) -> list[Cut]:
    """Return the cut of a problem's open layers that is found at once for each placement, where one is.

    Raises
    ------
    InfeasibleError, MethodError, InvalidInputError
        As ``partition`` does.
    """
    race = Race(problem, problem.placements, effort=effort)
    for _ in race.steps():
        if race.best_ms < float("inf"):
            break
    return [search.best for search in race.searches if search.best is not None]


class Race:
    """One search per placement; those that fell behind the best one's plan are left alone.

    Parameters
    ----------
    effort, exact
        As of ``partition``.
    fair
        Whether the usual cuts are searched as long as the best one, to compare like with like.
    stop, hurry
        As of ``better_cuts``.
    """

    def __init__(
        self,
        problem: Problem,
        placements: Sequence[Placement],
        *,
        effort: int = QUICK,
        exact: bool = False,
        fair: bool = False,
        stop: Stop = never,
        hurry: Stop = never,
    ) -> None:
        layers = problem.open_layers
        if layers is None:
            needed = "'auto' and a profile with layers"
            raise InvalidInputError([Finding("$.placement", f"{problem.placement!r}", needed)])
        for placement in placements if exact else ():
            require_few_cuts(layers.count, stages_in(placement))
        self.searches = [Search(problem, each, effort=effort, stop=self.stopped, hurry=hurry) for each in placements]
        self._exact = exact
        self._fair = fair
        self._stop = stop
        self._hurry = hurry
        self._has_first = False

    @property
    def best_ms(self) -> float:
        """What the best plan so far takes; infinity if there is none."""
        return min(map(_best_ms, self.searches))

    @property
    def best(self) -> Cut:
        """The cut with the best plan so far, for the first placement of equals; there must be one."""
        return min((each.best for each in self.searches if each.best is not None), key=_iteration_ms)

    def stopped(self) -> bool:
        """Return whether to end, but never before there is a cut; without hurry that does not depend on when."""
        return (self._has_first and self._stop()) or (self.best_ms < float("inf") and self._hurry())

    def steps(self) -> Iterator[None]:
        """Search, and yield whenever there may be a better cut.

        Raises
        ------
        InfeasibleError, MethodError
            If no cut has a plan.
        """
        for search in self.searches:
            if not self.stopped():
                search.begin()
        yield from self._yielded()
        for step in (self._widen, self._exhaust if self._exact else self._move):
            for search in sorted(self.searches, key=_best_ms):
                for _ in step(search):
                    yield from self._yielded()
        if self.best_ms == float("inf"):
            raise _refusal(self.searches)

    def _yielded(self) -> Iterator[None]:
        self._has_first = self.best_ms < float("inf")
        yield

    def _widen(self, search: Search) -> Iterator[None]:
        search.widen()
        yield

    def _exhaust(self, search: Search) -> Iterator[None]:
        search.exhaust(self.best_ms)
        search.refine(self.best_ms, fair=self._fair)
        yield

    def _move(self, search: Search) -> Iterator[None]:
        for _ in range(search.rounds):
            if not search.move(self.best_ms):
                break
            yield
        search.refine(self.best_ms, fair=self._fair)
        yield


def _candidate(search: Search) -> Candidate:
    return Candidate(search.judge.placement, search.best, search.even, search.shorter)


def _best_ms(search: Search) -> float:
    return search.best_ms


def _refusal(searches: Sequence[Search]) -> InfeasibleError | MethodError:
    """Return why there is no cut: how the method is refused, or the limits that raise memory the least."""
    refusals = [refusal for search in searches for refusal in search.judge.refusals]
    methods = [refusal for refusal in refusals if isinstance(refusal, MethodError)]
    short = [refusal for refusal in refusals if isinstance(refusal, InfeasibleError)]
    if methods:
        return methods[0]
    closest = min(short, key=_missing_bytes)
    why = HOPELESS if all(search.hopeless for search in searches) else NOT_FOUND
    return InfeasibleError(closest.limit_bytes, closest.smallest_limit_bytes, why)


def _missing_bytes(refusal: InfeasibleError) -> float:
    pairs = zip(refusal.limit_bytes, refusal.smallest_limit_bytes, strict=True)
    return max(smallest - (0.0 if limit is None else limit) for limit, smallest in pairs)


def _iteration_ms(cut: Cut) -> float:
    return cut.iteration_ms
