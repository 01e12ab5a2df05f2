"""The queue for workers, in a real PostgreSQL."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest
from procrastinate.schema import SchemaManager
from sqlalchemy import Connection, text
from sqlalchemy.exc import OperationalError

from api.claims import Claims
from api.database import Database
from api.store import Store
from api.worker_queue import WorkerQueue
from heuristic import construct
from tests.api.stored import CRASHED, added, asked, claimed

WAITING = text("SELECT args->>'key' FROM procrastinate_jobs WHERE status = 'todo' ORDER BY id")


@pytest.fixture
def shared(own_postgresql_url: str) -> Iterator[Database]:
    database = Database(own_postgresql_url)
    Store(database, WorkerQueue()).prepare()
    with database.write() as connection:
        connection.execute(text("TRUNCATE problems, procrastinate_jobs CASCADE"))
    yield database
    database.close()


def waiting(database: Database) -> list[str]:
    with database.read() as connection:
        return list(connection.execute(WAITING).scalars())


def test_problem_and_its_job_are_there_together(shared: Database) -> None:
    new = asked()
    with shared.write() as connection:
        WorkerQueue().put(connection, new.key)
        connection.get_transaction().rollback()
    assert waiting(shared) == []
    added(Store(shared, WorkerQueue()), new)
    assert waiting(shared) == [new.key]


def test_one_job_waits_for_a_problem_however_often_it_is_queued(shared: Database) -> None:
    store, claims = Store(shared, WorkerQueue()), Claims(shared, WorkerQueue())
    new = added(store, asked())
    store.add(new, construct(new))
    claims.lost(claimed(claims, new), CRASHED)
    claims.release(claimed(claims, new))
    claimed(claims, new, lease_s=-1)
    assert claims.reap() == [new.key]
    assert waiting(shared) == [new.key]


def test_what_was_queued_without_a_job_gets_one(shared: Database) -> None:
    """A service that solves by itself has queued it, or its worker died before it claimed it."""
    new, store = added(Store(shared), asked()), Store(shared, WorkerQueue())
    assert waiting(shared) == []
    for _ in range(2):
        store.put_forgotten()
        assert waiting(shared) == [new.key]


def test_queue_out_of_order_is_the_store_out_of_order(shared: Database) -> None:
    with shared.write() as connection:
        connection.execute(text("ALTER TABLE procrastinate_jobs RENAME TO away"))
        with pytest.raises(OperationalError, match="procrastinate_jobs"):
            WorkerQueue().put(connection, "key")
        connection.execute(text("ALTER TABLE away RENAME TO procrastinate_jobs"))


def functions(connection: Connection) -> list[str]:
    """Return what procrastinate has defined."""
    names = "SELECT oid::regprocedure::text FROM pg_proc WHERE proname LIKE 'procrastinate%' ORDER BY 1"
    return list(connection.execute(text(names)).scalars())


@pytest.mark.parametrize("database_url", ["postgresql"], indirect=True)
def test_tables_of_an_older_procrastinate_are_brought_up_to_date(database_url: str) -> None:
    database = Database(database_url)
    shipped = sorted(Path(SchemaManager.get_migrations_path()).glob("*.sql"))
    older = [path for path in shipped if path.name < "03.03"]
    assert 0 < len(older) < len(shipped)
    note = f"COMMENT ON TABLE procrastinate_jobs IS '{older[-1].name}'"
    for script in (*(path.read_text() for path in older), note):
        with database.write() as connection:
            connection.exec_driver_sql(script, execution_options={"no_parameters": True})
    with database.write() as connection:
        before = functions(connection)
        connection.execute(text("INSERT INTO procrastinate_jobs (queue_name, task_name) VALUES ('zbplan', 'waits')"))
    for _ in range(2):
        Store(database, WorkerQueue()).prepare()
    with database.write() as connection:
        updated = functions(connection)
        assert set(updated) > set(before)
        assert connection.execute(text("SELECT task_name FROM procrastinate_jobs")).scalar_one() == "waits"
        connection.execute(text("DROP SCHEMA public CASCADE"))
        connection.execute(text("CREATE SCHEMA public"))
    Store(database, WorkerQueue()).prepare()
    with database.read() as connection:
        assert functions(connection) == updated
    database.close()


def test_tables_without_a_note_are_those_of_the_first_services(shared: Database) -> None:
    with shared.write() as connection:
        before = functions(connection)
        connection.execute(text("COMMENT ON TABLE procrastinate_jobs IS NULL"))
    Store(shared, WorkerQueue()).prepare()
    with shared.read() as connection:
        assert functions(connection) == before
