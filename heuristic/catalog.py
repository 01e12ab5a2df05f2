"""Every constructive schedule by name, and the best of them for a problem."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterable, Iterator
from contextlib import suppress
from dataclasses import dataclass
from functools import cached_property

import numpy as np

from heuristic.flow import even_flow, sketch
from heuristic.fuse import fuse
from heuristic.gpipe import gpipe
from heuristic.interleaved_1f1b import interleaved_1f1b
from heuristic.ladder import least_time, rungs
from heuristic.objective import at_best
from heuristic.one_f_one_b import one_f_one_b
from heuristic.one_f_one_b_v import one_f_one_b_v
from heuristic.planner import RUNG, improvements
from heuristic.v_half import v_half
from heuristic.v_min import v_min
from heuristic.wave import first_wave, flows_down
from heuristic.zb_greedy import zb_greedy
from heuristic.zb_h1 import zb_h1
from heuristic.zb_h2 import zb_h2
from heuristic.zb_v import zb_v
from zbplan.errors import InfeasibleError, MethodError
from zbplan.instance import UNLIMITED, Instance, Orders
from zbplan.placement import Placement
from zbplan.plan import Plan
from zbplan.problem import Problem
from zbplan.simulate import Measures, measure
from zbplan.stop import Stop, never
from zbplan.tighten import tighten

Builder = Callable[[Instance], Orders]

METHODS: dict[str, Builder] = {
    "gpipe": gpipe,
    "1f1b": one_f_one_b,
    "zb_h1": zb_h1,
    "zb_h2": zb_h2,
    "zb_greedy": zb_greedy,
    "interleaved_1f1b": interleaved_1f1b,
    "1f1b_v": one_f_one_b_v,
    "zb_v": zb_v,
    "v_half": v_half,
    "v_min": v_min,
}
"""The schedules that have a name in the literature."""

LIMITED = ("zb_greedy", "zb_v")
"""Those that make something else of every memory limit."""

PLANNER = "planner"
"""What a plan's provenance says of a schedule that has no name: only ``auto`` and ``heuristic`` make it."""


@dataclass(frozen=True, eq=False)
class Built:
    """The legal schedule that a method made of a problem on a placement.

    Attributes
    ----------
    build_ms
        Wall-clock milliseconds to build, simulate and measure it.
    """

    problem: Problem
    placement: Placement
    method: str
    orders: Orders
    measures: Measures
    build_ms: float

    @cached_property
    def plan(self) -> Plan:
        """The complete plan, without a bound."""
        return Plan.build(self.problem, self.placement, self.orders, method=self.method)


@dataclass(frozen=True, eq=False)
class Refused:
    """Why a method has no legal schedule for a problem on a placement, and the milliseconds it took to know."""

    placement: Placement
    method: str
    error: MethodError
    build_ms: float


def construct(problem: Problem, *, effort: int = 0) -> Plan:
    """Return the best legal constructive plan by the objective, or that of the named schedule asked for.

    Of equally good plans the first in the sequence of ``candidates`` wins.

    Parameters
    ----------
    effort
        Ops that the planner may schedule, per placement. Without, it does what the ladder needs, so that more memory,
        as much on every device, never gives a slower plan.

    Raises
    ------
    InfeasibleError
        If no placement has a plan that fits into memory.
    MethodError
        If the named schedule has no legal plan; it names methods that have.
    """
    return min(best_per_placement(problem, effort=effort), key=_iteration).plan


def best_per_placement(problem: Problem, *, effort: int = 0, stop: Stop = never) -> list[Built]:
    """Return the best legal schedule of each placement that has one; errors as of ``construct``.

    Parameters
    ----------
    effort
        As of ``construct``.
    stop
        Asked between schedules whether to make do with those that are there; one legal schedule always comes.
    """
    tried: list[list[Built | Refused]] = []
    for placement in feasible_placements(problem):
        if stop() and any(_has_plan(row) for row in tried):
            break
        if problem.method in ("auto", "heuristic"):
            tried.append(_all_on(problem, placement, effort, stop))
        else:
            tried.append([_try(problem, placement, problem.method)])
    built = [[candidate for candidate in row if isinstance(candidate, Built)] for row in tried]
    if not any(built):
        refused = next(candidate for row in tried for candidate in row if isinstance(candidate, Refused))
        raise _with_advice(refused.error, _named(problem))
    return [min(row, key=_iteration) for row in built if row]


def candidates(problem: Problem, *, effort: int = 0) -> list[Built | Refused]:
    """Return what every method makes of a problem on each of its placements, in a fixed sequence.

    Parameters
    ----------
    effort
        Ops that the planner may schedule, per placement. Without, it does what the ladder needs, so that more memory,
        as much on every device, never gives a slower plan.

    Raises
    ------
    InfeasibleError
        If no placement has a plan that fits into memory.
    """
    tried = [_all_on(problem, placement, effort) for placement in feasible_placements(problem)]
    return [candidate for row in tried for candidate in row]


def build(problem: Problem, placement: Placement, method: str) -> Orders:
    """Return the orders of exactly one method.

    Raises
    ------
    InfeasibleError
        If no order of any method fits into memory.
    MethodError
        If this method is not defined on the placement or does not fit into memory; it names methods that can.
    """
    require_feasible(problem, placement)
    candidate = _try(problem, placement, method)
    if isinstance(candidate, Refused):
        raise _with_advice(candidate.error, _named(problem))
    return candidate.orders


def feasible_placements(problem: Problem) -> list[Placement]:
    """Return the placements of a problem on which a plan fits into memory; raises as ``construct`` does."""
    feasible = [placement for placement in problem.placements if _is_feasible(problem.instance(placement))]
    if not feasible:
        require_feasible(problem, problem.placements[0])
    return feasible


def legal_named(instance: Instance, *, stop: Stop = never) -> Iterator[Orders]:
    """Yield the orders of the named schedules that are defined on an instance and fit into its memory.

    Parameters
    ----------
    stop
        Asked between schedules whether to end.
    """
    for method in METHODS:
        with suppress(MethodError):
            yield _legal(instance, method)[0]
        if stop():
            return


def require_feasible(problem: Problem, placement: Placement) -> None:
    """Refuse a memory limit under which no plan exists.

    Raises
    ------
    InfeasibleError
        With the smallest limit per device.
    """
    instance = problem.instance(placement)
    if not _is_feasible(instance):
        smallest = (instance.smallest_room + instance.static).tolist()
        limits: list[float | None] = [*(problem.limits(placement) or [])]
        raise InfeasibleError(limits, [instance.memory.value(units) for units in smallest])


def _is_feasible(instance: Instance) -> bool:
    return bool((instance.smallest_room <= instance.room).all())


def _iteration(built: Built) -> int:
    return built.measures.iteration


def _named(problem: Problem) -> list[Built | Refused]:
    return [_try(problem, placement, method) for placement in feasible_placements(problem) for method in METHODS]


def _has_plan(row: list[Built | Refused]) -> bool:
    return any(isinstance(candidate, Built) for candidate in row)


def _all_on(problem: Problem, placement: Placement, effort: int, stop: Stop = never) -> list[Built | Refused]:
    """Return what the named schedules make of a problem on a placement, and what the planner makes of those.

    Where it is time to stop before that, what the planner makes in one go has to do.
    """
    named: list[Built | Refused] = []
    for method in METHODS:
        if stop():
            return [*named, _by_planner(problem, placement, sketch)]
        named.append(_try(problem, placement, method))
    legal = [built for built in named if isinstance(built, Built)]
    planned = _by_planner(problem, placement, lambda instance: _planned(instance, legal, effort, stop))
    return [*named, planned, _by_planner(problem, placement, sketch)] if stop() else [*named, planned]


def _by_planner(problem: Problem, placement: Placement, make: Builder) -> Built:
    instance, began = problem.instance(placement), time.perf_counter()
    orders = make(instance)
    return Built(problem, placement, PLANNER, orders, measure(instance, tighten(instance, orders)), _since(began))


def _planned(instance: Instance, named: list[Built], effort: int, stop: Stop) -> Orders:
    """Return the best orders that a search of some effort finds under the limit; without effort, the ladder's."""
    if effort > 0:
        return _searched(instance, [built.orders for built in named], effort, stop)
    best: list[Orders] = []
    objective = UNLIMITED
    for rung in rungs(instance):
        if best and stop():
            break
        if least_time(rung) < objective:
            orders = _searched(rung, _starts(rung, instance, named), RUNG, stop)
            if (found := at_best(instance, orders)) < objective:
                best, objective = [orders], found
    return best[0]


def _searched(instance: Instance, starts: list[Orders], effort: int, stop: Stop) -> Orders:
    """Return the best orders that a search from some starts finds, or one from the even flow where that is better."""
    if flows_down(instance):
        return _improved(instance, [*starts, first_wave(instance)], effort, stop)
    found = _improved(instance, starts, effort, stop)
    if stop():
        return found
    flow = even_flow(instance)
    return found if at_best(instance, found) <= at_best(instance, flow) else _improved(instance, [flow], effort, stop)


def _improved(instance: Instance, starts: list[Orders], effort: int, stop: Stop) -> Orders:
    known = sorted(starts, key=lambda orders: at_best(instance, orders))[:1]
    return fuse(instance, [*known, *improvements(instance, starts, effort=effort, stop=stop)][-1])


def _starts(rung: Instance, instance: Instance, named: list[Built]) -> list[Orders]:
    """Return what the named schedules make of a rung."""
    if (rung.room == instance.room).all():
        return [built.orders for built in named]
    starts = [built.orders for built in named if built.method not in LIMITED and _fits(rung, built)]
    for method in LIMITED:
        with suppress(MethodError):
            starts.append(_legal(rung, method)[0])
    return starts


def _fits(rung: Instance, built: Built) -> bool:
    return bool((built.measures.peak - rung.static <= rung.room).all())


def _try(problem: Problem, placement: Placement, method: str) -> Built | Refused:
    began = time.perf_counter()
    try:
        orders, measures = _legal(problem.instance(placement), method)
    except MethodError as error:
        return Refused(placement, method, error, _since(began))
    return Built(problem, placement, method, orders, measures, _since(began))


def _since(began: float) -> float:
    return 1000 * (time.perf_counter() - began)


def _legal(instance: Instance, method: str) -> tuple[Orders, Measures]:
    """Build a named schedule and judge its memory; the rest of what is legal every builder guarantees."""
    if method not in METHODS:
        raise MethodError(method, "is not a constructive schedule")
    orders = METHODS[method](instance)
    measures = measure(instance, tighten(instance, orders))
    over = np.flatnonzero(measures.peak - instance.static > instance.room)
    if len(over):
        device = int(over[0])
        needed = instance.memory.value(measures.peak[device])
        limit = instance.memory.value(instance.room[device] + instance.static[device])
        raise MethodError(method, f"takes {needed:.15g} bytes on device {device}, where memory_limit is {limit:.15g}")
    return orders, measures


def _with_advice(error: MethodError, others: Iterable[Built | Refused]) -> MethodError:
    able = [other.method for other in others if isinstance(other, Built)]
    return MethodError(error.method, error.reason, [*dict.fromkeys(able), "heuristic", "auto"])
