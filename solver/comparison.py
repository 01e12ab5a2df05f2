"""Comparison: every constructive method and the solver, on one problem."""

from __future__ import annotations

import time
from collections.abc import Iterator

from heuristic import Built, Refused, candidates, first_cuts, load_kernels
from solver.solve import Options, solve
from zbplan.comparison import Comparison, Row
from zbplan.plan import Bound
from zbplan.problem import Problem
from zbplan.validate import validate


def compare(problem: Problem, *, options: Options | None = None) -> Comparison:
    """Return what every method makes of a problem, whatever method it names.

    Where the layers are open, the methods stand on the solve's cut for its placement, and on a good one for the others.

    Parameters
    ----------
    options
        Of the solve that makes the row ``auto``.
    """
    asked = Problem.parse({**problem.model_dump(), "method": "auto"})
    load_kernels()
    best, bound = _solved(asked, options)
    rows = [_row(candidate, starts) for cut, starts in _cuts(asked, best) for candidate in candidates(cut)]
    return Comparison.of(asked.key, [*rows, best], bound)


def _cuts(problem: Problem, best: Row) -> Iterator[tuple[Problem, list[int] | None]]:
    """Yield the problems whose stages are given to compare on, and how the layers are cut in them if they are open."""
    if best.starts is None:
        yield problem, None
        return
    yield problem.cut(best.starts, best.placement), best.starts
    for cut in first_cuts(problem):
        if cut.placement != best.placement:
            yield cut.problem, list(cut.starts)


def _row(candidate: Built | Refused, starts: list[int] | None) -> Row:
    """Judge what a method made; that it comes from a builder does not make it legal."""
    row = Row(
        method=candidate.method,
        made_by=candidate.method,
        placement=candidate.placement,
        starts=starts,
        build_ms=candidate.build_ms,
    )
    if isinstance(candidate, Refused):
        return row.model_copy(update={"why_not": candidate.error.reason})
    violations = validate(candidate.plan)
    outcome = {"why_not": str(violations[0])} if violations else {"metrics": candidate.plan.metrics}
    return row.model_copy(update=outcome)


def _solved(problem: Problem, options: Options | None) -> tuple[Row, Bound]:
    """Return what the solver makes of a problem, and its bound."""
    began = time.perf_counter()
    best = solve(problem, options=options)
    row = Row(
        method="auto",
        made_by=best.provenance.method,
        placement=best.placement,
        starts=best.requires.starts,
        build_ms=1000 * (time.perf_counter() - began),
        metrics=best.metrics,
    )
    return row, best.bound
