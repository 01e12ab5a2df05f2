"""Solve: the best plan that the parts find within the time limit, with a bound."""

from __future__ import annotations

import time
from collections.abc import Callable
from dataclasses import dataclass, replace

from heuristic import Built, best_per_placement, partition
from solver.bounds import lower_bound
from solver.portfolio import PARTS
from solver.search import Event, Lane, OnIncumbent, Part, Search
from zbplan.plan import Plan
from zbplan.problem import Problem
from zbplan.validate import check


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

    Open layers are cut in stages first, as ``heuristic.partition`` does; plan and bound are those of the cut.

    The time limit counts from the call. The constructive plan and the analytic bound come first, whatever the limit;
    parts then have what is left of it.

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
    began_s, options = time.monotonic(), options or Options()
    if problem.open_layers is not None:
        return _cut_and_solve(problem, options, warm_start, on_incumbent, cancel)
    search = Search(
        problem,
        [_lane(problem, built) for built in best_per_placement(_constructive(problem))],
        began_s=began_s,
        time_limit_s=problem.time_limit_s if options.time_limit_s is None else options.time_limit_s,
        threads=options.threads,
        cancelled=_asker(cancel),
        on_incumbent=on_incumbent,
    )
    if warm_start is not None:
        with search.running("warm_start") as words:
            words.append(_start_from(search, warm_start))
    parts = PARTS.get(problem.method, ()) if options.parts is None else options.parts
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
    cancel: Event | Callable[[], bool] | None,
) -> Plan:
    """Solve the best cut of the open layers, and give its plans as answers to the problem that left them open."""
    began_s = time.monotonic()
    cut = partition(_constructive(problem)).best

    def report(plan: Plan, bound_ms: float) -> None:
        if on_incumbent is not None:
            on_incumbent(plan.answering(problem, cut.starts), bound_ms)

    limit_s = problem.time_limit_s if options.time_limit_s is None else options.time_limit_s
    plan = solve(
        problem.cut(cut.starts, cut.placement),
        options=replace(options, time_limit_s=max(0.0, limit_s - (time.monotonic() - began_s))),
        warm_start=warm_start or cut.built.plan,
        on_incumbent=report,
        cancel=cancel,
    )
    return plan.answering(problem, cut.starts)


def _constructive(problem: Problem) -> Problem:
    """Return the problem as the constructive schedules know it: a solver starts from the best of them all."""
    return problem.model_copy(update={"method": "auto"}) if problem.method in PARTS else problem


def _lane(problem: Problem, built: Built) -> Lane:
    instance = problem.instance(built.placement)
    plan = Plan.build(problem, built.placement, built.orders, method=built.method)
    return Lane(built.placement, instance, check(plan), lower_bound(instance))


def _start_from(search: Search, plan: Plan) -> str:
    """Offer the orders of another problem's plan; return what came of them."""
    problem = search.problem
    if problem.method not in PARTS:
        return f"not used: method {problem.method} says what the plan must be"
    lane = next((lane for lane in search.lanes if lane.placement == plan.placement), None)
    if lane is None:
        return "not used: it stands on a placement that is not searched here"
    if plan.requires.microbatches != problem.microbatches:
        return f"not used: it has {plan.requires.microbatches} microbatches, this problem {problem.microbatches}"
    return search.start_from(lane, plan)


def _asker(cancel: Event | Callable[[], bool] | None) -> Callable[[], bool]:
    if cancel is None:
        return lambda: False
    return cancel if callable(cancel) else cancel.is_set
