"""Export: a plan in a format of others."""

from __future__ import annotations

from enum import StrEnum
from typing import TYPE_CHECKING, Annotated

import typer

from zbplan import files
from zbplan.cli.application import app, example, say
from zbplan.cli.records import AnyOutput, PlanFile, read

if TYPE_CHECKING:
    from zbplan.plan import Plan


class Format(StrEnum):
    """What a plan can be written as."""

    CSV = "csv"
    CSV_COMMS = "csv-comms"
    CHROME = "chrome"


@app.command(
    epilog=example("zbplan export plan.json --format csv -o schedule.csv", "zbplan export plan.json -f chrome")
)
def export(
    plan: PlanFile,
    format: Annotated[  # noqa: A002
        Format,
        typer.Option(
            "--format",
            "-f",
            help="csv: PyTorch's compute_only; csv-comms: its compute_comms, with sends and receives in the order of "
            "predicted time; chrome: for Perfetto.",
        ),
    ],
    output: AnyOutput = files.STANDARD,
) -> None:
    """Write a plan as PyTorch's CSV or as a Chrome trace.

    A CSV carries orders only: no times, placement or version. A plan that PyTorch would train wrongly from it is
    refused.
    """
    from zbplan.plan import Plan
    from zbplan.validate import check

    found = check(read(Plan, plan))
    files.check_writable(output)
    files.write(output, _chrome(found) if format is Format.CHROME else _csv(found, comms=format is Format.CSV_COMMS))


def _chrome(plan: Plan) -> str:
    from zbplan.formats import chrome

    return f"{chrome.of_plan(plan)}\n"


def _csv(plan: Plan, *, comms: bool) -> str:
    from runtime_client.lowering import lower
    from zbplan.formats import pytorch_csv

    pytorch_csv.check_runs(plan)
    for sentence in pytorch_csv.lost(plan):
        say(f"warning: {sentence}")
    return pytorch_csv.write(pytorch_csv.from_actions(lower(plan)) if comms else pytorch_csv.from_plan(plan))
