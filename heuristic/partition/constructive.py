"""Constructive: the best constructive plan of any problem, on a good cut of its layers where it leaves them open."""

from __future__ import annotations

import time

from heuristic import catalog
from heuristic.partition.partition import better_cuts
from heuristic.planner import QUICK
from zbplan.jit import COMPILED
from zbplan.plan import PartRun, Plan
from zbplan.problem import Problem

SLOW_CUT, SLOW_PLAN = 2_000, 20_000
"""Ops that the planner may schedule for each cut and for the plan where nothing is compiled: an op takes 50 times as
long there, and a job that waits for its plan needs one in seconds."""


def construct(problem: Problem, *, effort: int = 0) -> Plan:
    """Return the best legal constructive plan by the objective, or that of the named schedule asked for.

    Where numba is not installed the search is shorter, which may give another plan; its provenance says so.

    Parameters
    ----------
    effort
        Ops that the planner may schedule for the plan, per placement. Without, it does what the ladder needs, so that
        more memory, as much on every device, never gives a slower plan of the same stages.

    Raises
    ------
    InfeasibleError
        If no placement, or no cut that was found, has a plan that fits into memory.
    MethodError
        If the named schedule has no legal plan.
    """
    if COMPILED:
        return _constructed(problem, QUICK, effort)
    began_s = time.perf_counter()
    plan = _constructed(problem, SLOW_CUT, effort or SLOW_PLAN)
    ran_s = round(time.perf_counter() - began_s, 3)
    return plan.with_parts([PartRun(part="planner", ran_s=ran_s, outcome="searched little: numba is not installed")])


def _constructed(problem: Problem, cut_effort: int, effort: int) -> Plan:
    if problem.open_layers is None:
        return catalog.construct(problem, effort=effort)
    cut = next(better_cuts(problem, effort=cut_effort))
    plans = (cut.built.plan, catalog.construct(cut.problem, effort=effort))
    return min(plans, key=lambda plan: plan.metrics.iteration_ms).answering(problem, cut.starts)
