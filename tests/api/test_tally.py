"""What the store says of solves, each told once, on databases of both kinds."""

from __future__ import annotations

from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor

import pytest
from sqlalchemy import text

from api.database import Database
from api.store import Store
from api.tally import Tally
from heuristic import construct
from tests.api.servers import problem
from zbplan.problem import Problem


@pytest.fixture
def database(database_url: str) -> Iterator[Database]:
    database = Database(database_url)
    database.migrate()
    yield database
    database.close()


def store_problem(database: Database) -> str:
    asked = Problem.parse(problem())
    Store(database).add(asked, construct(asked))
    return asked.key


def end(database: Database, key: str, finished_at: str) -> None:
    ended = "UPDATE problems SET status = 'done', started_at = :began, finished_at = :ended WHERE key = :key"
    with database.write() as connection:
        began = finished_at.replace("30.000000Z", "28.500000Z")
        connection.execute(text(ended), {"began": began, "ended": finished_at, "key": key})


def test_every_state_is_counted(database: Database) -> None:
    keys = [store_problem(database) for _ in range(3)]
    end(database, keys[0], "2100-01-01T00:00:30.000000Z")
    assert Tally(database).counts() == {"queued": 2, "solving": 0, "done": 1, "failed": 0, "cancelled": 0}


def test_problems_of_another_revision_do_not_count(database: Database) -> None:
    key, old = store_problem(database), store_problem(database)
    with database.write() as connection:
        connection.execute(text("UPDATE problems SET revision = revision + 1 WHERE key = :key"), {"key": old})
    assert Tally(database).counts()["queued"] == 1
    end(database, key, "2100-01-01T00:00:30.000000Z")
    assert Tally(database).counts()["queued"] == 0


def test_each_solve_is_told_once_with_its_time_and_gap(database: Database) -> None:
    old, new = store_problem(database), store_problem(database)
    end(database, old, "2000-01-01T00:00:30.000000Z")
    tally = Tally(database)
    end(database, new, "2100-01-01T00:00:30.000000Z")
    with ThreadPoolExecutor(4) as scrapes:
        found = [solve for solves in scrapes.map(lambda _: tally.finished(), range(8)) for solve in solves]
    (solve,) = found
    assert (solve.status, solve.seconds, solve.gap) == ("done", 1.5, 1)  # nobody looked for a bound
    end(database, new, "2100-01-02T00:00:30.000000Z")
    assert len(tally.finished()) == 1
