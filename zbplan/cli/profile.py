"""Profile: measure a model on the nodes that train it."""

from __future__ import annotations

import typer

from zbplan.cli.application import DELEGATED, app


@app.command(**DELEGATED)
def profile(ctx: typer.Context) -> None:
    """Measure a model on the nodes that train it."""
    from profiler.cli import main as measure

    raise typer.Exit(measure(ctx.args, prog="zbplan profile", splitter="runtime_client:split"))
