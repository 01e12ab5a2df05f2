"""Plan: find the best plan for a problem."""

from __future__ import annotations

from zbplan import files
from zbplan.cli.application import app, example
from zbplan.cli.records import Output, ProblemFile, deliver, read_problem


@app.command(epilog=example("zbplan plan problem.json -o plan.json"))
def plan(problem: ProblemFile, output: Output = files.STANDARD) -> None:
    """Find the best plan for a problem, with a proven bound."""
    from solver import solve

    asked = read_problem(problem)
    files.check_writable(output)
    deliver(solve(asked), output)
