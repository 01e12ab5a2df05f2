"""Databases that are locked, that hang, or whose file is gone."""

from __future__ import annotations

import shutil
import time
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import httpx
import psycopg
import pytest
from sqlalchemy import text, update
from sqlalchemy.exc import OperationalError

from api import database as databases
from api.database import OUT_OF_ORDER, Database
from api.libpq import conninfo
from api.sqlite_file import MovedError
from api.store import Store
from api.tables import ProblemRow
from tests.api.postgresql import PostgreSQL, postgresql
from tests.api.servers import Server, problem, running, wait_until
from tests.api.stored import added, asked, job


@pytest.fixture
def own() -> Iterator[PostgreSQL]:
    with postgresql() as server:
        yield server


@pytest.fixture
def hasty(own: PostgreSQL, monkeypatch: pytest.MonkeyPatch) -> Iterator[Database]:
    """A database that waits a second for anything."""
    monkeypatch.setattr(databases, "STATEMENT_S", 1)
    monkeypatch.setattr(databases, "IDLE_S", 1)
    made = Database(own.url)
    made.migrate()
    yield made
    made.close()


def test_statement_that_waits_for_a_lock_gives_up(own: PostgreSQL, hasty: Database) -> None:
    with psycopg.connect(conninfo(own.url)) as other:
        other.execute("LOCK TABLE problems IN ACCESS EXCLUSIVE MODE")
        with pytest.raises(OperationalError, match="statement timeout"):
            Store(hasty).job("0")
    assert Store(hasty).job("0") is None


def test_migration_takes_the_time_that_it_needs(hasty: Database) -> None:
    with hasty.migrating() as connection:
        connection.execute(text("SELECT pg_sleep(1.2)"))
        time.sleep(1.2)
        connection.execute(text("SELECT 1"))
    with hasty.write() as connection, pytest.raises(OperationalError, match="statement timeout"):
        connection.execute(text("SELECT pg_sleep(1.2)"))


def hang(database: Database, key: str) -> None:
    """Touch a problem and do nothing in the same transaction until another can cancel it; then go on."""
    touch = update(ProblemRow).where(ProblemRow.key == key).values(attempts=1)
    with database.write() as connection:
        connection.execute(touch)
        wait_until(lambda: cancelled(Store(database), key))
        connection.execute(touch)


def test_whoever_hangs_amid_a_transaction_loses_its_locks(hasty: Database) -> None:
    new = added(Store(hasty), asked())
    with pytest.raises(OUT_OF_ORDER):
        hang(hasty, new.key)
    assert job(Store(hasty), new).status == "cancelled"


def cancelled(store: Store, key: str) -> bool:
    try:
        store.cancel(key)
    except OperationalError:
        return False
    return True


SOON = {"api.asking.ANSWER_S": 1.0, "api.readiness.PATIENCE_S": 1.0, "api.clerks.LINE_S": 4.0}


def assert_refused_for_now(answer: httpx.Response) -> None:
    assert (answer.status_code, answer.headers["content-type"]) == (503, "application/problem+json")
    assert int(answer.headers["retry-after"]) > 0


def test_database_that_hangs_holds_nobody_for_ever(tmp_path: Path, own: PostgreSQL) -> None:
    with running(tmp_path, patched=SOON, database_url=own.url, desk_limit_s=8) as server:
        path = f"/v1/plans/{server.post(problem(), wait_s=30).json()['key']}"
        held = server.begin(problem("held"))
        own.freeze()
        wait_until(lambda: server.get(path).status_code == 503)
        with ThreadPoolExecutor(40) as crowd:
            answers = [crowd.submit(server.get, path) for path in 10 * (path, f"/v1/plans/{held}", "/v1/plans")]
            answers += [crowd.submit(server.post, problem()) for _ in range(2)]
            for answer in answers:
                assert_refused_for_now(answer.result(timeout=60))
        assert server.get("/healthz").status_code == 200
        found = {item["path"]: item["found"] for item in server.get("/readyz").json()["errors"]}
        assert found["store"] == "no answer within 1 s"
        own.thaw()
        wait_until(lambda: server.get(path).status_code == 200)
        server.let(held, "release")
        assert server.get(f"/v1/plans/{held}", Prefer="wait=30").json()["status"] == "done"
        assert server.post(problem(), wait_s=30).json()["status"] == "done"


def test_service_stops_while_its_database_hangs(tmp_path: Path, own: PostgreSQL) -> None:
    with running(tmp_path, patched=SOON, database_url=own.url) as server:
        server.begin(problem("held"))
        own.freeze()
        wait_until(lambda: server.get("/v1/plans").status_code == 503)
        assert server.stop() == 0


@pytest.mark.parametrize("found", ["no file", "another file"])
def test_file_that_is_gone_is_told_and_nothing_is_taken_until_it_is_back(tmp_path: Path, found: str) -> None:
    with running(tmp_path) as server:
        path = f"/v1/plans/{server.post(problem(), wait_s=30).json()['key']}"
        kept = server.database.with_name("kept")
        server.database.rename(kept)
        if found == "another file":
            shutil.copy(kept, server.database)
        for answer in (server.post(problem()), server.get("/v1/plans"), server.get("/readyz")):
            assert_refused_for_now(answer)
            assert f"found {found} where that of the database was" in answer.json()["detail"]
        assert server.get("/healthz").status_code == 200
        kept.replace(server.database)
        wait_until(lambda: server.get("/readyz").status_code == 200)
        assert server.get(path).json()["status"] == "done"
        assert server.post(problem(), wait_s=30).json()["status"] == "done"


def test_solve_waits_for_its_file(tmp_path: Path) -> None:
    with running(tmp_path) as server:
        held = server.begin(problem("held"))
        kept = server.database.with_name("kept")
        server.database.rename(kept)
        server.let(held, "release")
        wait_until(lambda: "the store cannot be used" in server.log())
        assert not server.database.exists()
        kept.replace(server.database)
        assert done(server, held)


def done(server: Server, key: str) -> bool:
    return bool(server.get(f"/v1/plans/{key}", Prefer="wait=30").json()["status"] == "done")


def test_worker_process_makes_no_database(tmp_path: Path) -> None:
    database = Database(f"sqlite:///{tmp_path / 'plans.sqlite3'}")
    with pytest.raises(MovedError, match="no file where"), database.read():
        pytest.fail("it was opened")
    database.migrate()
    assert Store(database).job("0") is None
    database.close()
