"""Serve: plans over HTTP."""

from __future__ import annotations

from typing import Annotated

import typer

from zbplan.cli.application import app, example
from zbplan.errors import Finding, InvalidInputError


@app.command(epilog=example("zbplan serve --port 8642 --database-url sqlite:///plans.sqlite3"))
def serve(
    host: Annotated[str, typer.Option(help="Address to listen on.")] = "127.0.0.1",
    port: Annotated[int, typer.Option(help="Port to listen on; 0 takes a free one.")] = 8642,
    database_url: Annotated[str, typer.Option(help="Where plans are kept.")] = "sqlite:///zbplan.sqlite3",
) -> None:
    """Serve plans over HTTP until interrupted."""
    from api.server import serve as run
    from api.settings import Settings

    settings = Settings.parse({"host": host, "port": port, "database_url": database_url})
    try:
        run(settings)
    except OSError as error:
        found = error.strerror or str(error)
        needed = "an address of this machine and a free port"
        raise InvalidInputError([Finding(f"--host {host} --port {port}", found, needed)]) from None
