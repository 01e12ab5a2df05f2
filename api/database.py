"""Database: connections and transactions, shared by every process of the service."""

from __future__ import annotations

import functools
import sqlite3
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from typing import NoReturn

from sqlalchemy import Connection, Engine, create_engine, event
from sqlalchemy.engine import make_url
from sqlalchemy.engine.interfaces import DBAPIConnection
from sqlalchemy.exc import ArgumentError, InterfaceError, InternalError, OperationalError, SQLAlchemyError
from sqlalchemy.exc import TimeoutError as NoConnectionError
from sqlalchemy.pool import ConnectionPoolEntry

from api.libpq import patience
from api.schema import upgrade
from api.sqlite_file import file_of
from zbplan.errors import Finding, InvalidInputError

OUT_OF_ORDER = (OperationalError, InterfaceError, InternalError, NoConnectionError)
"""What is raised when the database is away, full, locked, read-only for a while, or holds all connections up: it may
heal."""

BUSY_S = 20
"""How long a SQLite writer waits for another."""

STATEMENT_S = 20
"""How long a statement in PostgreSQL may take, its wait for locks too; the longest that there are take a second."""

IDLE_S = 20
"""How long a transaction in PostgreSQL may hold its locks without a statement: whoever began it hangs."""


class Database:
    """One database.

    Parameters
    ----------
    url
        For SQLAlchemy, such as ``sqlite:///zbplan.sqlite3``.
    """

    def __init__(self, url: str) -> None:
        self._engine = create_engine(url, pool_pre_ping=True, connect_args=patience(url))
        self._file = file_of(url)
        if self._engine.dialect.name == "sqlite":
            _configure_sqlite(self._engine)
        if self._engine.dialect.name == "postgresql":
            _configure_postgresql(self._engine)

    def migrate(self) -> None:
        """Bring the tables to what this version of the service uses; other processes that start wait meanwhile."""
        with self.migrating() as connection:
            upgrade(connection)

    def close(self) -> None:
        """Close every connection."""
        self._engine.dispose()

    @contextmanager
    def migrating(self) -> Iterator[Connection]:
        """Hold a transaction that may change the tables, in a database that may be made for it, as long as it takes."""
        with self._connect(may_be_made=True).execution_options(zbplan_write=True) as connection, connection.begin():
            if connection.dialect.name == "postgresql":
                for limit in ("statement_timeout", "idle_in_transaction_session_timeout"):
                    connection.exec_driver_sql(f"SET LOCAL {limit} = 0")
            yield connection

    @contextmanager
    def write(self) -> Iterator[Connection]:
        """Hold a transaction that may change something."""
        with self._connect().execution_options(zbplan_write=True) as connection, connection.begin():
            yield connection

    @contextmanager
    def read(self) -> Iterator[Connection]:
        """Hold a transaction that changes nothing."""
        with self._connect() as connection:
            yield connection

    def _connect(self, *, may_be_made: bool = False) -> Connection:
        if self._file is not None:
            self._file.require(may_be_made=may_be_made)
        return self._engine.connect()


@functools.cache
def database_at(url: str) -> Database:
    """Return this process's database at a URL."""
    return Database(url)


def require_database(url: str) -> None:
    """Open a database, bringing its tables up to date.

    Raises
    ------
    InvalidInputError
        If it cannot be used.
    """
    try:
        if make_url(url).database in (None, "", ":memory:"):
            _refuse(url, "no database that several processes can open")
        database = Database(url)
        database.migrate()
        database.close()
    except (SQLAlchemyError, ImportError) as error:
        _refuse(url, str(getattr(error, "orig", None) or error))


def _refuse(url: str, why: str) -> NoReturn:
    with suppress(ArgumentError):
        url = make_url(url).render_as_string(hide_password=True)
    needed = "a SQLAlchemy URL of a database that can be opened, such as sqlite:////var/lib/zbplan/plans.sqlite3"
    raise InvalidInputError([Finding("database_url", f"{url!r}: {why}", needed)])


def _configure_postgresql(engine: Engine) -> None:
    @event.listens_for(engine, "connect")
    def _connect(connection: DBAPIConnection, _: ConnectionPoolEntry) -> None:
        cursor = connection.cursor()
        cursor.execute(f"SET statement_timeout = '{STATEMENT_S}s'")
        cursor.execute(f"SET idle_in_transaction_session_timeout = '{IDLE_S}s'")
        cursor.close()
        connection.commit()


def _configure_sqlite(engine: Engine) -> None:
    @event.listens_for(engine, "connect")
    def _connect(connection: sqlite3.Connection, _: ConnectionPoolEntry) -> None:
        connection.isolation_level = None
        connection.execute(f"PRAGMA busy_timeout = {BUSY_S * 1000}")
        connection.execute("PRAGMA journal_mode = WAL")
        connection.execute("PRAGMA foreign_keys = ON")

    @event.listens_for(engine, "begin")
    def _begin(connection: Connection) -> None:
        # A transaction that reads before it writes must lock at once: SQLite cannot make it wait later.
        write = connection.get_execution_options().get("zbplan_write", False)
        connection.exec_driver_sql("BEGIN IMMEDIATE" if write else "BEGIN")
