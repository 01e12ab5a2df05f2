"""Reading problems and plans, and writing plans, for the commands: which files, and what to say of them."""

from __future__ import annotations

from typing import TYPE_CHECKING, Annotated, TypeVar

import typer

from zbplan import files
from zbplan.cli.application import say
from zbplan.errors import Finding, InvalidInputError

if TYPE_CHECKING:
    from zbplan.plan import Plan
    from zbplan.problem import Problem
    from zbplan.record import Record

    AnyRecord = TypeVar("AnyRecord", bound=Record)

ProblemFile = Annotated[str, typer.Argument(metavar="PROBLEM.json", help="What to plan; - reads standard input.")]
PlanFile = Annotated[str, typer.Argument(metavar="PLAN.json", help="The plan; - reads standard input.")]
Output = Annotated[
    str, typer.Option("--output", "-o", metavar="PLAN.json", help="Where to write it; - is standard output.")
]
AnyOutput = Annotated[
    str, typer.Option("--output", "-o", metavar="FILE", help="Where to write it; - is standard output.")
]


def read(kind: type[AnyRecord], source: str) -> AnyRecord:
    """Read a record from a file; findings name it."""
    content = files.read(source)
    try:
        return kind.parse_json(content)
    except InvalidInputError as error:
        findings = [Finding(f"{source} {finding.path}", finding.found, finding.needed) for finding in error.findings]
        raise InvalidInputError(findings) from None


def read_problem(source: str, **changes: object) -> Problem:
    """Read a problem, with other values for some fields, and warn of what is probably not meant."""
    from zbplan.advice import advice
    from zbplan.problem import Problem

    problem = read(Problem, source)
    for sentence in advice(problem):
        say(f"warning: {source} {sentence}")
    return Problem.parse({**problem.model_dump(), **changes}) if changes else problem


def deliver(plan: Plan, output: str) -> None:
    """Write a plan and say how good it is."""
    files.write(output, f"{plan.to_json()}\n")
    typer.echo(f"{output}: {summary(plan)}", err=output == files.STANDARD)


def summary(plan: Plan) -> str:
    """Return how good a plan is, in a line."""
    cost = f"iteration {plan.metrics.iteration_ms:.6g} ms, bubble {plan.metrics.bubble_rate:.2%}"
    bound = f"bound {plan.bound.iteration_ms:.6g} ms, gap {plan.bound.gap:.2%}"
    return f"{plan.provenance.method}, {cost}, {bound}, key {plan.key}"
