"""Worker queue: problems that wait for a ``zbplan worker``, as jobs of procrastinate in the store's PostgreSQL."""

from __future__ import annotations

from contextlib import suppress
from pathlib import Path

from procrastinate import App, SyncPsycopgConnector
from procrastinate.exceptions import AlreadyEnqueued, ConnectorException
from procrastinate.schema import SchemaManager
from psycopg import Connection as Psycopg
from sqlalchemy import Connection, inspect, text
from sqlalchemy.exc import OperationalError

from zbplan.problem import REVISION

QUEUE = "zbplan"
TASK = "zbplan.solve"

BEFORE_NOTES = "03.04.00_50_post_add_retry_failed_job_procedure.sql"
"""The last migration of procrastinate's tables that were made before the service noted it in a comment on them."""

_LAST_MIGRATION = text("SELECT obj_description('procrastinate_jobs'::regclass)")

_FORGOTTEN = text(
    "SELECT key FROM problems WHERE status = 'queued' AND coalesce(revision, 1) = :revision AND NOT EXISTS "
    "(SELECT FROM procrastinate_jobs WHERE queueing_lock = problems.key AND status = 'todo')"
)


class WorkerQueue:
    """Each job holds the key of a problem and nothing else; one waits per problem."""

    def __init__(self) -> None:
        # Never opened: jobs are put on the connections of the store.
        self._app = App(connector=SyncPsycopgConnector())

    def prepare(self, connection: Connection) -> bool:
        """Take procrastinate's tables a step towards what the installed package uses; return whether there was one.

        Each of its migrations needs a transaction of its own: one may use what another has added to a type.
        """
        shipped = sorted(Path(SchemaManager.get_migrations_path()).glob("*.sql"))
        if not inspect(connection).has_table("procrastinate_jobs"):
            script, last = SchemaManager.get_schema(), shipped[-1].name
        else:
            noted = connection.execute(_LAST_MIGRATION).scalar_one() or BEFORE_NOTES
            path = next((path for path in shipped if path.name > noted), None)
            if path is None:
                return False
            script, last = path.read_text(encoding="utf-8"), path.name
        for statements in (script, f"COMMENT ON TABLE procrastinate_jobs IS '{last}'"):
            connection.exec_driver_sql(statements, execution_options={"no_parameters": True})
        return True

    def put(self, connection: Connection, key: str) -> None:
        """Queue a problem, unless it waits already."""
        job = self._app.configure_task(TASK, queue=QUEUE, queueing_lock=key, connection=_psycopg(connection))
        try:
            with suppress(AlreadyEnqueued), connection.begin_nested():
                job.defer(key=key)
        except ConnectorException as error:
            # The store's own connection failed, and whoever uses the store knows what that means.
            raise OperationalError(f"put {key}", None, error.__cause__ or error) from error

    def forgotten(self, connection: Connection) -> list[str]:
        """Return the keys of queued problems for which no job waits: their worker died before it claimed them."""
        return list(connection.execute(_FORGOTTEN, {"revision": REVISION}).scalars())


def _psycopg(connection: Connection) -> Psycopg:
    driver = connection.connection.driver_connection
    assert isinstance(driver, Psycopg)  # noqa: S101 - settings allow no other database
    return driver
