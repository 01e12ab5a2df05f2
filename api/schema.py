"""Schema: brings a database to the tables that this version of the service uses."""

from __future__ import annotations

from alembic import command
from alembic.config import Config
from sqlalchemy import Connection, inspect, text

LOCK = 0x7A62706C616E
"""The advisory lock in PostgreSQL under which one process migrates while the others wait."""

BEFORE_MIGRATIONS = "0001"
"""What a database has whose tables were made before the service kept a record of their migrations."""


def upgrade(connection: Connection) -> None:
    """Run the migrations that are missing; the transaction must be one that writes.

    Either all of them or none are kept, and of many processes that start at once, one runs them.
    """
    if connection.dialect.name == "postgresql":
        connection.execute(text("SELECT pg_advisory_xact_lock(:lock)"), {"lock": LOCK})
    tables = inspect(connection).get_table_names()
    if "problems" in tables and "alembic_version" not in tables:
        command.stamp(_config(connection), BEFORE_MIGRATIONS)
    migrate_to(connection, "head")


def migrate_to(connection: Connection, revision: str) -> None:
    """Run the migrations that lead to a revision."""
    command.upgrade(_config(connection), revision)


def _config(connection: Connection) -> Config:
    config = Config(attributes={"connection": connection})
    config.set_main_option("script_location", "api:migrations")
    return config
