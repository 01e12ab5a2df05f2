"""Show: draw a plan."""

from __future__ import annotations

from typing import TYPE_CHECKING, Annotated

import typer

from zbplan.cli.application import app, example
from zbplan.cli.drawing import printed
from zbplan.cli.records import PlanFile, read
from zbplan.errors import Finding, InvalidInputError

if TYPE_CHECKING:
    from zbplan.plan import Plan


@app.command(epilog=example("zbplan show plan.json --critical-path", "zbplan show plan.json --to-ms 250 --width 160"))
def show(
    plan: PlanFile,
    critical_path: Annotated[bool, typer.Option("--critical-path", help="List why it takes so long.")] = False,
    from_ms: Annotated[float | None, typer.Option(help="Draw from this time on.")] = None,
    to_ms: Annotated[float | None, typer.Option(help="Draw up to this time.")] = None,
    width: Annotated[int | None, typer.Option(min=60, max=1000, help="Columns to draw on.")] = None,
) -> None:
    """Draw a plan as a Gantt chart.

    Devices are rows; beside each stand its memory peak and the share of the iteration that it is idle.
    """
    from zbplan.draw.terminal import chart
    from zbplan.draw.waits import waits
    from zbplan.plan import Plan
    from zbplan.validate import check

    found = check(read(Plan, plan))
    _require_stretch(found, from_ms, to_ms)
    with printed(width) as console:
        for line in chart(found, width=console.width, from_ms=from_ms, to_ms=to_ms):
            console.print(line)
        for line in waits(found) if critical_path else ():
            console.print(line, soft_wrap=True)


def _require_stretch(plan: Plan, from_ms: float | None, to_ms: float | None) -> None:
    from zbplan.draw.terminal import span_ms

    begin, end = span_ms(plan)
    first, last = begin if from_ms is None else from_ms, end if to_ms is None else to_ms
    if not (first < last and first < end and last > begin) and (from_ms is not None or to_ms is not None):
        needed = f"a stretch of time between {begin:g} and {end:g} ms"
        raise InvalidInputError([Finding("--from-ms, --to-ms", f"{first:g} to {last:g}", needed)])
