"""Migrations, on real databases of both kinds."""

from __future__ import annotations

from concurrent.futures import ThreadPoolExecutor

from alembic.autogenerate import compare_metadata
from alembic.migration import MigrationContext
from sqlalchemy import text

from api.database import Database
from api.documents import text_of
from api.listing import Listing, Wanted
from api.schema import BEFORE_MIGRATIONS, migrate_to
from api.store import Store
from api.tables import Base
from heuristic import construct
from tests.api.servers import problem
from zbplan.problem import REVISION, Problem


def test_migrations_make_what_the_models_say(database_url: str) -> None:
    database = Database(database_url)
    database.migrate()
    with database.read() as connection:
        assert compare_metadata(MigrationContext.configure(connection), Base.metadata) == []
    database.close()


def test_many_services_start_at_once(database_url: str) -> None:
    databases = [Database(database_url) for _ in range(4)]
    with ThreadPoolExecutor(4) as crowd:
        list(crowd.map(Database.migrate, databases))
    with databases[0].read() as connection:
        assert len(connection.execute(text("SELECT version_num FROM alembic_version")).all()) == 1
    for database in databases:
        database.close()


def test_second_migration_changes_nothing(database_url: str) -> None:
    database = Database(database_url)
    database.migrate()
    asked = Problem.parse(problem())
    Store(database).add(asked, construct(asked))
    before = Store(database).job(asked.key)
    database.migrate()
    assert Store(database).job(asked.key) == before
    database.close()


def test_database_from_before_migrations_is_carried_over(database_url: str) -> None:
    """Such a database has the tables of the first migration, and no record of it."""
    database = Database(database_url)
    with database.migrating() as connection:
        migrate_to(connection, BEFORE_MIGRATIONS)
        connection.execute(text("INSERT INTO profiles VALUES ('d', '\"n\"', '2026-01-01', 'x')"))
        connection.execute(text("DROP TABLE alembic_version"))
    database.migrate()
    with database.read() as connection:
        assert compare_metadata(MigrationContext.configure(connection), Base.metadata) == []
        assert connection.execute(text("SELECT digest FROM profiles")).scalar_one() == "d"
    database.close()


def test_problems_from_before_the_lists_knew_facts_get_them(database_url: str) -> None:
    database = Database(database_url)
    named = {**problem(), "placement": [[0], [1], [2], [3]], "devices": 4, "method": "zb_h1"}
    named["profile"]["name"] = "caf\u00e9 \ud800"
    old = Problem.parse(named)
    row = {"key": old.key, "problem": text_of(old), "status": "queued", "submitted_at": "2026", "revision": REVISION}
    with database.migrating() as connection:
        migrate_to(connection, "0004")
        columns = "key, problem, status, submitted_at, time_limit_s, attempts, revision"
        values = ":key, :problem, :status, :submitted_at, 1, 0, :revision"
        connection.execute(text(f"INSERT INTO problems ({columns}) VALUES ({values})"), row)
    database.migrate()
    (found,) = Listing(database).page(Wanted(profile="caf\u00e9 \ud800", placement="custom")).plans
    assert (found.key, found.method, found.optimizer, found.devices) == (old.key, "zb_h1", "synchronous", 4)
    database.close()
