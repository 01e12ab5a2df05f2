"""Solve: the best plan that the parts find within the time limit, with a bound."""

from __future__ import annotations

import time
from dataclasses import dataclass
from typing import Protocol

from heuristic import load_kernels
from solver.budget import Budget
from solver.layers import solve_layers
from solver.request import Request
from solver.search import OnIncumbent, Part
from solver.stages import solve_stages
from zbplan.plan import Plan
from zbplan.problem import Problem
from zbplan.stop import Stop, never


class Event(Protocol):
    """Something that can say that the answer is no longer wanted, such as ``threading.Event``."""

    def is_set(self) -> bool:
        """Return whether to stop."""


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

    def budget(self, problem: Problem, cancelled: Stop) -> Budget:
        """Return what a solve of a problem that begins now may use up."""
        limit_s = problem.time_limit_s if self.time_limit_s is None else self.time_limit_s
        return Budget(time.monotonic(), limit_s, self.threads, cancelled)


def solve(
    problem: Problem,
    *,
    options: Options | None = None,
    warm_start: Plan | None = None,
    on_incumbent: OnIncumbent | None = None,
    cancel: Event | Stop | None = None,
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
    options = options or Options()
    request = Request(problem, options.budget(problem, _stop(cancel)), options.parts, on_incumbent)
    solved = solve_stages if problem.open_layers is None else solve_layers
    return solved(request, warm_start)


def _stop(cancel: Event | Stop | None) -> Stop:
    if cancel is None:
        return never
    return cancel if callable(cancel) else cancel.is_set
