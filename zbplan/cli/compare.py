"""Compare: what every method makes of a problem."""

from __future__ import annotations

import json
import time
from dataclasses import replace
from typing import TYPE_CHECKING, Annotated

import typer

from zbplan.cli.application import app, example
from zbplan.cli.drawing import printed
from zbplan.cli.records import ProblemFile, read_problem

if TYPE_CHECKING:
    from heuristic import Built, Refused
    from zbplan.draw.comparison import Row
    from zbplan.plan import Bound
    from zbplan.problem import Problem


@app.command(epilog=example("zbplan compare problem.json", "zbplan compare problem.json --json > comparison.json"))
def compare(
    problem: ProblemFile,
    as_json: Annotated[bool, typer.Option("--json", help="Print JSON instead of a table.")] = False,
) -> None:
    """Compare what every method makes of a problem."""
    from zbplan.draw.comparison import Comparison

    asked = read_problem(problem, method="auto")
    rows = _rows(asked)
    best, bound = _solved(asked)
    comparison = Comparison([*rows, best], bound)
    if as_json:
        typer.echo(json.dumps({"key": asked.key, **comparison.as_json()}, indent=2))
        return
    with printed() as console:
        for part in comparison.lines():
            console.print(part)


def _rows(problem: Problem) -> list[Row]:
    """Return what each constructive method makes of a problem."""
    from heuristic import candidates
    from zbplan.problem import Problem

    # Kernels are compiled or loaded when first called, which is no part of what a method takes.
    profile = {"stages": 2, "t_f_ms": 1, "t_b_ms": 1, "t_w_ms": 1, "t_comm_ms": 0, "m_b_bytes": 1, "m_w_bytes": 1}
    candidates(Problem.parse({"profile": profile, "devices": 2, "microbatches": 2}))
    return [_row(candidate) for candidate in candidates(problem)]


def _row(candidate: Built | Refused) -> Row:
    """Judge what a method made; that it comes from a builder does not make it legal."""
    from heuristic import Refused
    from zbplan.draw.comparison import Row
    from zbplan.validate import validate as violations_of

    row = Row(candidate.method, candidate.method, candidate.placement, candidate.build_ms)
    if isinstance(candidate, Refused):
        return replace(row, why_not=candidate.error.reason)
    violations = violations_of(candidate.plan)
    return replace(row, why_not=str(violations[0])) if violations else replace(row, metrics=candidate.plan.metrics)


def _solved(problem: Problem) -> tuple[Row, Bound]:
    """Return what the solver makes of a problem, and its bound."""
    from solver import solve
    from zbplan.draw.comparison import Row

    began = time.perf_counter()
    best = solve(problem)
    took_ms = 1000 * (time.perf_counter() - began)
    return Row("auto", best.provenance.method, best.placement, took_ms, best.metrics), best.bound
