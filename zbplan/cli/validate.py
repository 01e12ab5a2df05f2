"""Validate: say every way in which a plan is wrong."""

from __future__ import annotations

import typer

from zbplan.cli.application import NO, app, example, say
from zbplan.cli.records import PlanFile, read, summary


@app.command(epilog=example("zbplan validate plan.json"))
def validate(plan: PlanFile) -> None:
    """Say every way in which a plan is wrong.

    The exit status is 1 if there is one.
    """
    from zbplan.plan import Plan
    from zbplan.validate import validate as violations_of

    found = read(Plan, plan)
    violations = violations_of(found)
    for violation in violations:
        say(f"{plan} {violation}")
    if violations:
        raise typer.Exit(NO)
    typer.echo(f"{plan}: legal; {summary(found)}")
