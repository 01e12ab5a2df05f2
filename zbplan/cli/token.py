"""Token: who may ask the service."""

from __future__ import annotations

from typing import TYPE_CHECKING, Annotated

import typer

from zbplan.cli.application import app, example, say

if TYPE_CHECKING:
    from api.tokens import Tokens

tokens = typer.Typer(
    help="Say who may ask the service; of a token only a digest is stored.",
    no_args_is_help=True,
    rich_markup_mode=None,
)
app.add_typer(tokens, name="token")

Name = Annotated[str, typer.Argument(metavar="NAME", help="Whose token it is.")]
DatabaseUrl = Annotated[
    str | None, typer.Option(help="Where the service keeps its plans; $ZBPLAN_DATABASE_URL or its default otherwise.")
]


@tokens.command(epilog=example("zbplan token add training --role write"))
def add(
    name: Name,
    role: Annotated[str, typer.Option(help="read: look at plans; write: ask for them, too.")] = "read",
    database_url: DatabaseUrl = None,
) -> None:
    """Print a new token, which cannot be shown again."""
    typer.echo(_stored(database_url).add(name, role))
    say(f"a service that runs takes the token of {name!r} within seconds; clients send it as a bearer token")


@tokens.command("list", epilog=example("zbplan token list --database-url sqlite:///plans.sqlite3"))
def list_(database_url: DatabaseUrl = None) -> None:
    """List whose tokens there are, and what they may do."""
    for token in _stored(database_url).list():
        typer.echo(f"{token.name}  {token.role}  {token.added_at}")


@tokens.command(epilog=example("zbplan token revoke training"))
def revoke(name: Name, database_url: DatabaseUrl = None) -> None:
    """Take a token away."""
    _stored(database_url).revoke(name)


def _stored(database_url: str | None) -> Tokens:
    from api.database import database_at, require_database
    from api.settings import Settings
    from api.tokens import Tokens

    settings = Settings.parse({} if database_url is None else {"database_url": database_url})
    require_database(settings.database_url)
    return Tokens(database_at(settings.database_url))
