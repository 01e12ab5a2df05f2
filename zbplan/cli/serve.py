"""Serve: plans over HTTP."""

from __future__ import annotations

from typing import Annotated, Any

import typer
from typer.core import TyperCommand

from zbplan.cli.application import app, example
from zbplan.errors import Finding, InvalidInputError


class _Serve(TyperCommand):
    """The command, whose help lists every setting of the service where it is installed."""

    def format_epilog(self, ctx: Any, formatter: Any) -> None:
        try:
            from api.settings import Settings
        except ModuleNotFoundError:
            return super().format_epilog(ctx, formatter)
        with formatter.section("Environment (what is not given above is read from it)"):
            formatter.write_dl([(f"{name} [{default}]", text) for name, default, text in Settings.listing()])
        return super().format_epilog(ctx, formatter)


@app.command(cls=_Serve, epilog=example("zbplan serve --port 8642 --database-url sqlite:///plans.sqlite3"))
def serve(
    host: Annotated[str | None, typer.Option(help="Address to listen on.")] = None,
    port: Annotated[int | None, typer.Option(help="Port to listen on; 0 takes a free one.")] = None,
    database_url: Annotated[str | None, typer.Option(help="Where plans are kept.")] = None,
    insecure: Annotated[bool, typer.Option("--insecure", help="Let everyone in without a token.")] = False,
) -> None:
    """Serve plans over HTTP until interrupted."""
    from api.server import serve as run
    from api.settings import Settings

    chosen = {"host": host, "port": port, "database_url": database_url, "insecure": insecure or None}
    settings = Settings.parse({name: value for name, value in chosen.items() if value is not None})
    try:
        run(settings)
    except OSError as error:
        found = error.strerror or str(error)
        needed = "an address of this machine and a free port"
        raise InvalidInputError([Finding(f"--host {settings.host} --port {settings.port}", found, needed)]) from None
