"""Stages: the solve of a problem whose stages are given."""

from __future__ import annotations

from heuristic import best_per_placement
from solver.lane import Lane
from solver.portfolio import PARTS
from solver.request import Request
from solver.search import Part, Search
from zbplan.plan import Plan
from zbplan.validate import check

ELSEWHERE = "not used: it stands on a placement that is not searched here"


def solve_stages(request: Request, warm_start: Plan | None) -> Plan:
    """Begin with constructive plans and what the warm start brings; then each part has its share of the time."""
    search = begin(request)
    if warm_start is not None:
        with search.running("warm_start") as words:
            words.append(start_from(search, warm_start))
    return improve(search, request.parts)


def begin(request: Request, known: Plan | None = None) -> Search:
    """Return a search with the best constructive plan of each placement, and with what a known answer says beside."""
    built = best_per_placement(request.constructive, stop=request.is_late)
    lanes = [Lane.of(request.problem, each, request.bounding()) for each in built]
    for lane in lanes:
        if known is not None and known.placement == lane.placement:
            lane.resume(check(known))
    return Search(request.problem, lanes, request.budget, request.on_incumbent)


def start_from(search: Search, plan: Plan) -> str:
    """Offer the orders of another problem's plan; return what came of them, in words for people."""
    problem = search.problem
    if problem.method not in PARTS:
        return f"not used: method {problem.method} says what the plan must be"
    lane = next((lane for lane in search.lanes if lane.placement == plan.placement), None)
    if lane is None:
        return ELSEWHERE
    if plan.requires.microbatches != problem.microbatches:
        return f"not used: it has {plan.requires.microbatches} microbatches, this problem {problem.microbatches}"
    return search.start_from(lane, plan)


def improve(search: Search, parts: tuple[Part, ...]) -> Plan:
    """Return the answer once all parts have had their share of the time for each lane."""
    lanes = sorted(search.lanes, key=lambda lane: lane.plan.metrics.iteration_ms)
    for turn, lane in enumerate(lanes):
        with search.allotted(1 / (len(lanes) - turn)):
            for part in parts:
                if search.goes_on(lane):
                    part(search, lane)
    return search.answer
