"""Worker queue: problems that wait for a ``zbplan worker``, as jobs of procrastinate in the store's PostgreSQL."""

from __future__ import annotations

from contextlib import suppress

from procrastinate import App, SyncPsycopgConnector
from procrastinate.exceptions import AlreadyEnqueued, ConnectorException
from procrastinate.schema import SchemaManager
from psycopg import Connection as Psycopg
from sqlalchemy import Connection, inspect, text
from sqlalchemy.exc import OperationalError

from zbplan.problem import REVISION

QUEUE = "zbplan"
TASK = "zbplan.solve"

_FORGOTTEN = text(
    "SELECT key FROM problems WHERE status = 'queued' AND coalesce(revision, 1) = :revision AND NOT EXISTS "
    "(SELECT FROM procrastinate_jobs WHERE queueing_lock = problems.key AND status = 'todo')"
)


class WorkerQueue:
    """Each job holds the key of a problem and nothing else; one waits per problem."""

    def __init__(self) -> None:
        # Never opened: jobs are put on the connections of the store.
        self._app = App(connector=SyncPsycopgConnector())

    def prepare(self, connection: Connection) -> None:
        """Make procrastinate's tables, under the lock of the migrations."""
        if not inspect(connection).has_table("procrastinate_jobs"):
            _psycopg(connection).execute(SchemaManager.get_schema())

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
