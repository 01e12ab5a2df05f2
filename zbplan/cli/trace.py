"""Trace: a plan against what really ran."""

from __future__ import annotations

import json
from typing import Annotated

import typer

from zbplan import files
from zbplan.cli.application import app, example, say
from zbplan.cli.drawing import printed
from zbplan.cli.records import PlanFile, read


@app.command(
    epilog=example("zbplan trace plan.json trace.json", "zbplan trace plan.json trace.json --replan profile.json")
)
def trace(
    plan: PlanFile,
    trace: Annotated[str, typer.Argument(metavar="TRACE.json", help="What PlanSchedule.trace() returned.")],
    as_json: Annotated[bool, typer.Option("--json", help="Print JSON, with every op, instead of tables.")] = False,
    chrome: Annotated[str | None, typer.Option(metavar="FILE", help="Write the trace for Perfetto.")] = None,
    replan: Annotated[
        str | None, typer.Option(metavar="PROFILE.json", help="Write a profile with the times that were measured.")
    ] = None,
    force: Annotated[bool, typer.Option("--force", help="Keep a profile of scattered samples, and mark it.")] = False,
) -> None:
    """Hold a trace against its plan: what took longer, what waited, where the time went, what to do."""
    from zbplan.draw.trace_report import lines
    from zbplan.formats.chrome import of_trace
    from zbplan.plan import Plan
    from zbplan.replan import measured_profile
    from zbplan.trace import Trace
    from zbplan.trace_report import report
    from zbplan.validate import check
    from zbplan.verdict import verdict

    planned, ran = check(read(Plan, plan)), read(Trace, trace)
    for target in (chrome, replan):
        files.check_writable(target or files.STANDARD)
    found = report(planned, ran)
    if as_json:
        typer.echo(json.dumps({"verdict": verdict(found), **found.as_json()}, indent=2))
    else:
        with printed() as console:
            for line in lines(found):
                console.print(line, soft_wrap=True)
    if chrome is not None:
        files.write(chrome, f"{of_trace(planned, ran)}\n")
    if replan is not None:
        files.write(replan, f"{measured_profile(planned, ran, force=force).to_json()}\n")
        if planned.asked.profile.layers is not None:
            say(f"warning: {replan}: found layers in the plan's profile, left out: a trace measures stages")
