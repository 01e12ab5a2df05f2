"""Constructive: the best constructive plan of any problem, its layers cut first where it leaves them open."""

from __future__ import annotations

from heuristic import catalog
from heuristic.partition.partition import better_cuts
from zbplan.plan import Plan
from zbplan.problem import Problem


def construct(problem: Problem, *, effort: int = 0) -> Plan:
    """Return the best legal constructive plan by the objective, or that of the named schedule asked for.

    Parameters
    ----------
    effort
        Ops that the planner may schedule for the cut, or per placement where the stages are given.

    Raises
    ------
    InfeasibleError
        If no placement, or no cut that was found, has a plan that fits into memory.
    MethodError
        If the named schedule has no legal plan.
    """
    if problem.open_layers is None:
        return catalog.construct(problem, effort=effort)
    cut = next(better_cuts(problem))
    plans = (cut.built.plan, catalog.construct(cut.problem, effort=effort))
    return min(plans, key=lambda plan: plan.metrics.iteration_ms).answering(problem, cut.starts)
