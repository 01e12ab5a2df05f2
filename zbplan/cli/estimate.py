"""Estimate: a profile from formulas."""

from __future__ import annotations

import typer

from zbplan.cli.application import DELEGATED, app


@app.command(**DELEGATED)
def estimate(ctx: typer.Context) -> None:
    """Estimate a profile from transformer formulas, where there is no GPU yet."""
    from profiler.estimate_cli import main as estimated

    raise typer.Exit(estimated(ctx.args, prog="zbplan estimate"))
