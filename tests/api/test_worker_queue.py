"""The queue for workers, in a real PostgreSQL."""

from __future__ import annotations

from collections.abc import Iterator

import pytest
from sqlalchemy import text
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
