"""Worker: solves for services on the same database."""

from __future__ import annotations

from typing import Annotated

import typer

from zbplan.cli.application import app, example


@app.command(epilog=example("zbplan worker --database-url postgresql+psycopg://zbplan@db/zbplan"))
def worker(
    database_url: Annotated[str | None, typer.Option(help="The PostgreSQL that the services use.")] = None,
    solver_workers: Annotated[int | None, typer.Option(help="Processes that solve, one problem each.")] = None,
) -> None:
    """Solve for services that run with ZBPLAN_SOLVING=workers, until interrupted.

    Start as many as there are machines. What is not given is read from the environment, as `zbplan serve` lists it.
    """
    from api.settings import Settings
    from api.worker import work

    chosen = {"database_url": database_url, "solver_workers": solver_workers, "solving": "workers"}
    work(Settings.parse({name: value for name, value in chosen.items() if value is not None}))
