"""Compare: what every method makes of a problem."""

from __future__ import annotations

import json
from typing import Annotated

import typer

from zbplan.cli.application import app, example
from zbplan.cli.drawing import printed
from zbplan.cli.records import ProblemFile, read_problem


@app.command(epilog=example("zbplan compare problem.json", "zbplan compare problem.json --json > comparison.json"))
def compare(
    problem: ProblemFile,
    as_json: Annotated[bool, typer.Option("--json", help="Print JSON instead of a table.")] = False,
) -> None:
    """Compare what every method makes of a problem."""
    from solver import compare as compared
    from zbplan.draw.comparison import lines

    comparison = compared(read_problem(problem, method="auto"))
    if as_json:
        typer.echo(json.dumps(comparison.model_dump(), indent=2))
        return
    with printed() as console:
        for part in lines(comparison):
            console.print(part)
