"""What tests share: one service, for problems of their own, and databases of both kinds."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest
from sqlalchemy import create_engine, text

from api.claims import Claims
from api.database import Database
from api.store import Store
from tests.api.postgresql import postgresql
from tests.api.servers import Server, running


@pytest.fixture(scope="session")
def server(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Server]:
    with running(tmp_path_factory.mktemp("service"), max_body_bytes=200_000) as service:
        yield service


@pytest.fixture(scope="session")
def postgresql_url() -> Iterator[str]:
    with postgresql() as database:
        yield database.url


@pytest.fixture(scope="module")
def own_postgresql_url() -> Iterator[str]:
    """A database in a server of the module's own."""
    with postgresql() as database:
        yield database.url


@pytest.fixture(params=["sqlite", "postgresql"])
def database_url(request: pytest.FixtureRequest, tmp_path: Path) -> str:
    """An empty database of each kind."""
    if request.param == "sqlite":
        return f"sqlite:///{tmp_path / 'plans.sqlite3'}"
    url: str = request.getfixturevalue("postgresql_url")
    engine = create_engine(url)
    with engine.begin() as connection:
        connection.execute(text("DROP SCHEMA public CASCADE"))
        connection.execute(text("CREATE SCHEMA public"))
    engine.dispose()
    return url


@pytest.fixture
def database(database_url: str) -> Iterator[Database]:
    made = Database(database_url)
    made.migrate()
    yield made
    made.close()


@pytest.fixture
def store(database: Database) -> Store:
    return Store(database)


@pytest.fixture
def claims(database: Database) -> Claims:
    return Claims(database)
