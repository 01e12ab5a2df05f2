"""Readiness of the parts that there are."""

from __future__ import annotations

import asyncio
from collections.abc import Iterator
from pathlib import Path

import pytest
from sqlalchemy import text

from api import readiness
from api.database import Database
from api.readiness import look
from api.refusal import Refusal
from api.store import Store
from api.worker_queue import WorkerQueue
from tests.api.servers import Server


@pytest.fixture
def database(tmp_path: Path) -> Iterator[Database]:
    database = Database(f"sqlite:///{tmp_path / 'plans.sqlite3'}")
    database.migrate()
    yield database
    database.close()


async def works() -> None:
    """Go through a worker and back."""


async def breaks() -> None:
    raise RuntimeError("the worker died")


async def hangs() -> None:
    await asyncio.sleep(60)


def test_ready(server: Server) -> None:
    answer = server.get("/readyz")
    assert (answer.status_code, answer.json()["status"]) == (200, "ready")
    assert answer.json()["parts"] == dict.fromkeys(("store", "desk", "cp_sat", "ilp"), "ok")


def test_missing_solver_is_named_and_does_not_count_as_broken(
    database: Database, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(readiness, "SOLVERS", {"cp_sat": "no_such_module"})
    found = asyncio.run(look(database, works, elsewhere=False))
    assert found.status == "degraded"
    assert found.parts == {"store": "ok", "desk": "ok", "cp_sat": "no module no_such_module"}


@pytest.mark.parametrize(("desk", "why"), [(breaks, "RuntimeError"), (hangs, "no answer within")])
def test_broken_workers_are_named(
    database: Database, monkeypatch: pytest.MonkeyPatch, desk: readiness.Callable, why: str
) -> None:
    monkeypatch.setattr(readiness, "PATIENCE_S", 0.1)
    with pytest.raises(Refusal) as refused:
        asyncio.run(look(database, desk, elsewhere=False))
    (error,) = refused.value.document.errors
    assert (error.path, refused.value.document.status) == ("desk", 503)
    assert why in error.found


def test_broken_store_is_named(database: Database) -> None:
    with database.write() as connection:
        connection.execute(text("DROP TABLE problems"))
    with pytest.raises(Refusal, match="found OperationalError; needed ok"):
        asyncio.run(look(database, works, elsewhere=False))


def test_workers_count_while_they_are_heard_of(own_postgresql_url: str) -> None:
    database = Database(own_postgresql_url)
    Store(database, WorkerQueue()).prepare()
    for heard, status in ((None, "degraded"), ("now() - interval '1 hour'", "degraded"), ("now()", "ready")):
        if heard is not None:
            with database.write() as connection:
                connection.execute(text(f"INSERT INTO procrastinate_workers (last_heartbeat) VALUES ({heard})"))
        found = asyncio.run(look(database, works, elsewhere=True))
        assert (found.status, set(found.parts)) == (status, {"store", "desk", "workers"})
    database.close()
