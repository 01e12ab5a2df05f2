"""Fetch: the plan of a problem from a service."""

from __future__ import annotations

import os
import warnings
from typing import Annotated

import typer

from zbplan import files
from zbplan.cli.application import app, example, say
from zbplan.cli.records import Output, deliver


@app.command(epilog=example("zbplan fetch http://127.0.0.1:8642 $KEY -o plan.json"))
def fetch(
    url: Annotated[str, typer.Argument(metavar="URL", help="Where the service answers.")],
    key: Annotated[str, typer.Argument(metavar="KEY", help="The key of the problem, as the service gave it.")],
    output: Output = files.STANDARD,
    timeout_s: Annotated[float, typer.Option(min=0, help="Seconds to wait for a plan.")] = 300.0,
) -> None:
    """Fetch the plan of a problem from a service.

    A service that wants a token gets the one in $ZBPLAN_TOKEN.
    """
    from runtime_client.service import download
    from zbplan.validate import check

    files.check_writable(output)
    with warnings.catch_warnings(record=True) as caught:
        warnings.simplefilter("always")
        found = download(url, key, timeout_s=timeout_s, token=os.environ.get("ZBPLAN_TOKEN"))
    for warning in caught:
        say(f"warning: {warning.message}")
    deliver(check(found), output)
