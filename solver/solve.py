"""Solve: the best plan that the parts find within the time limit, with a bound."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass

from heuristic import Built, Cut, best_per_placement, better_cuts, load_kernels
from solver.bounds import lower_bound
from solver.cuts import CutAnswers
from solver.portfolio import PARTS
from solver.search import Event, Lane, OnIncumbent, Part, Search, running
from zbplan.errors import ZbplanError
from zbplan.placement import Placement
from zbplan.plan import PartRun, Plan
from zbplan.problem import Problem
from zbplan.validate import check

CUTTING = 0.8
"""Part of the time that the search for cuts may take where other parts follow it."""

ELSEWHERE = "not used: it stands on a placement that is not searched here"

GRACE_S = 0.25
"""Seconds past the limit that all constructive schedules and analytic bounds may take: but for the largest problems
they are the same whatever the limit."""


@dataclass(frozen=True)
class Options:
    """How to solve.

    Attributes
    ----------
    time_limit_s
        Wall-clock seconds; None takes the problem's.
    parts
        What tries to improve on the constructive plan and the analytic bound, in sequence; None takes those of the
        problem's method.
    threads
        How many an exact solver may use; the cores of the machine are not asked, for the answer depends on it.
    """

    time_limit_s: float | None = None
    parts: tuple[Part, ...] | None = None
    threads: int = 2


def solve(
    problem: Problem,
    *,
    options: Options | None = None,
    warm_start: Plan | None = None,
    on_incumbent: OnIncumbent | None = None,
    cancel: Event | Callable[[], bool] | None = None,
) -> Plan:
    """Return the best legal plan found, with a proven bound.

    Where the layers are open, the first answer stands on a good cut of them, better cuts are searched for in a part of
    the time, and the best one is solved in the rest; the bound is that of the answer's cut.

    The time limit counts from the call, but for loading the kernels, once in a process. The constructive plan and the
    analytic bound come first; parts then have what is left. Where the limit is well past before that, or the solve is
    cancelled, the first legal plan has to do.

    Parameters
    ----------
    problem
        What to plan.
    options
        How to solve.
    warm_start
        A valid plan of a problem like this one, whose orders are tried here. The answer is no worse than they are; its
        provenance says what came of them in its part ``warm_start``, and names the plan where it comes from them.
    on_incumbent
        Called with the first plan and each better one, and their bound in milliseconds.
    cancel
        A callable or an event that says whether to stop; the best plan so far is returned then.

    Raises
    ------
    InfeasibleError
        If no plan fits into memory; it says which limits would do.
    MethodError
        If the named method has no legal plan; it names methods that have.
    """
    load_kernels()
    began_s, options = time.monotonic(), options or Options()
    if problem.open_layers is not None:
        return _cut_and_solve(problem, options, warm_start, on_incumbent, _asker(cancel))
    search = _begun(problem, options, _asker(cancel), on_incumbent, began_s=began_s)
    if warm_start is not None:
        with search.running("warm_start") as words:
            words.append(_start_from(search, warm_start))
    return _improved(search, _parts(problem, options))


def _begun(
    problem: Problem,
    options: Options,
    cancelled: Callable[[], bool],
    on_incumbent: OnIncumbent | None,
    *,
    began_s: float,
    known: Plan | None = None,
) -> Search:
    """Return a search with the best constructive plan of each placement, and with what a known answer says beside."""
    late_s = began_s + _time_limit_s(problem, options) + GRACE_S

    def stop() -> bool:
        return cancelled() or time.monotonic() > late_s

    lanes = [_lane(problem, built, stop) for built in best_per_placement(_constructive(problem), stop=stop)]
    for lane in lanes:
        if known is not None and known.placement == lane.placement:
            lane.resume(check(known))
    return Search(
        problem,
        lanes,
        began_s=began_s,
        time_limit_s=_time_limit_s(problem, options),
        threads=options.threads,
        cancelled=cancelled,
        on_incumbent=on_incumbent,
    )


def _improved(search: Search, parts: tuple[Part, ...]) -> Plan:
    """Return the answer once all parts have had their share of the time for each lane."""
    lanes = sorted(search.lanes, key=lambda lane: lane.plan.metrics.iteration_ms)
    for turn, lane in enumerate(lanes):
        with search.allotted(1 / (len(lanes) - turn)):
            for part in parts:
                if search.goes_on(lane):
                    part(search, lane)
    return search.answer


def _cut_and_solve(
    problem: Problem,
    options: Options,
    warm_start: Plan | None,
    on_incumbent: OnIncumbent | None,
    cancelled: Callable[[], bool],
) -> Plan:
    """Answer on a good cut at once, search for better cuts, and solve the best for what is left of the time."""
    solving = _CutSolve(problem, options, on_incumbent, cancelled)
    cuts = better_cuts(_constructive(problem), stop=solving.has_cut_enough)
    solving.begin(next(cuts))
    if warm_start is not None:
        solving.start_from(warm_start)
    if options.parts != ():
        solving.take(cuts)
        solving.improve_best()
    return solving.answer


class _CutSolve:
    """The solve of a problem that leaves its layers open."""

    def __init__(
        self, problem: Problem, options: Options, on_incumbent: OnIncumbent | None, cancelled: Callable[[], bool]
    ) -> None:
        self._problem = problem
        self._options = options
        self._cancelled = cancelled
        self._answers = CutAnswers(problem, on_incumbent)
        self._runs: list[PartRun] = []
        self._began_s = time.monotonic()
        self._limit_s = _time_limit_s(problem, options)

    @property
    def answer(self) -> Plan:
        """The best answer, and what the parts did."""
        return self._answers.best.with_parts(self._runs)

    def has_cut_enough(self) -> bool:
        """Return whether to search for no other cut."""
        part = CUTTING if _parts(self._problem, self._options) else 1
        return self._cancelled() or time.monotonic() - self._began_s >= part * self._limit_s

    def begin(self, cut: Cut) -> None:
        """Answer with the plan of a cut, then with the best constructive one on it."""
        self._answers.offer(_lane(cut.problem, cut.built, self._cancelled).answer, cut.starts)
        self._search(cut.starts, cut.placement)

    def start_from(self, plan: Plan) -> None:
        """Try the orders of a plan on its own cut, or on the best one where its stages were given."""
        at = self._answers.best if plan.requires.starts is None else plan
        with running(self._runs, "warm_start") as words:
            if at.placement not in self._problem.placements:
                words.append(ELSEWHERE)
                return
            try:
                search = self._search(at.requires.starts or (), at.placement)
            except ZbplanError as error:
                words.append(f"not legal here: {error}")
            else:
                words.append(_start_from(search, plan))

    def take(self, cuts: Iterable[Cut]) -> None:
        """Answer with each better cut that is found."""
        with running(self._runs, "cuts") as words:
            found = 0
            for cut in cuts:
                self._answers.offer(_lane(cut.problem, cut.built, self._cancelled).answer, cut.starts)
                found += 1
            words.append(f"{found or 'none'} better{', then stopped' if self.has_cut_enough() else ''}")

    def improve_best(self) -> None:
        """Solve the best cut."""
        if not self._cancelled() and time.monotonic() - self._began_s < self._limit_s:
            search = self._search(self._answers.best.requires.starts or (), self._answers.plan.placement)
            answer = _improved(search, _parts(self._problem, self._options))
            self._answers.settle(answer)
            self._runs += answer.provenance.parts

    def _search(self, starts: Sequence[int], placement: Placement) -> Search:
        """Begin to search on a cut, from the best plan if that stands on it; what is found becomes an answer."""
        return _begun(
            self._problem.cut(starts, placement),
            self._options,
            self._cancelled,
            lambda plan, _: self._answers.offer(plan, starts),
            began_s=self._began_s,
            known=self._answers.on(starts, placement),
        )


def _parts(problem: Problem, options: Options) -> tuple[Part, ...]:
    return PARTS.get(problem.method, ()) if options.parts is None else options.parts


def _time_limit_s(problem: Problem, options: Options) -> float:
    return problem.time_limit_s if options.time_limit_s is None else options.time_limit_s


def _constructive(problem: Problem) -> Problem:
    """Return the problem as the constructive schedules know it: a solver starts from the best of them all."""
    return problem.model_copy(update={"method": "auto"}) if problem.method in PARTS else problem


def _lane(problem: Problem, built: Built, stop: Callable[[], bool]) -> Lane:
    instance = problem.instance(built.placement)
    plan = Plan.build(problem, built.placement, built.orders, method=built.method)
    return Lane(built.placement, instance, check(plan), lower_bound(instance, stop))


def _start_from(search: Search, plan: Plan) -> str:
    """Offer the orders of another problem's plan; return what came of them."""
    problem = search.problem
    if problem.method not in PARTS:
        return f"not used: method {problem.method} says what the plan must be"
    lane = next((lane for lane in search.lanes if lane.placement == plan.placement), None)
    if lane is None:
        return ELSEWHERE
    if plan.requires.microbatches != problem.microbatches:
        return f"not used: it has {plan.requires.microbatches} microbatches, this problem {problem.microbatches}"
    return search.start_from(lane, plan)


def _asker(cancel: Event | Callable[[], bool] | None) -> Callable[[], bool]:
    if cancel is None:
        return lambda: False
    return cancel if callable(cancel) else cancel.is_set
