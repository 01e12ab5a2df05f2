"""Tokens in real databases of both kinds, and what a running service knows of them."""

from __future__ import annotations

import asyncio
from collections.abc import Iterator

import pytest
from sqlalchemy import text

from api import tokens as module
from api.database import Database
from api.tokens import Keyring, Tokens, holder
from zbplan.errors import InvalidInputError


@pytest.fixture
def database(database_url: str) -> Iterator[Database]:
    database = Database(database_url)
    database.migrate()
    yield database
    database.close()


def test_only_the_digest_is_stored(database: Database) -> None:
    secret = Tokens(database).add("training", "write")
    with database.read() as connection:
        (row,) = connection.execute(text("SELECT * FROM tokens"))
    assert secret not in str(row)
    assert len(secret) == 43


def test_secret_finds_its_token_and_no_other_does(database: Database) -> None:
    tokens = Tokens(database)
    secrets = {name: tokens.add(name, "read") for name in ("b", "a")}
    known = tokens.list()
    assert [token.name for token in known] == ["a", "b"]
    for name, secret in secrets.items():
        found = holder(known, secret)
        assert found is not None
        assert found.name == name
    for wrong in ("", "a", secrets["a"][:-1], secrets["a"].swapcase(), known[0].digest, "\udcff"):
        assert holder(known, wrong) is None


def test_revoked_token_is_gone(database: Database) -> None:
    tokens = Tokens(database)
    tokens.add("training", "write")
    tokens.revoke("training")
    assert tokens.list() == []
    with pytest.raises(InvalidInputError, match="needed the name of a token"):
        tokens.revoke("training")


@pytest.mark.parametrize(
    ("name", "role", "needed"),
    [
        ("training", "read", "a name that no token has"),
        ("", "read", "1 to 64 letters"),
        ("a b", "read", "1 to 64 letters"),
        ("other", "admin", "one of read, write"),
    ],
)
def test_wrong_tokens_are_refused(database: Database, name: str, role: str, needed: str) -> None:
    Tokens(database).add("training", "write")
    with pytest.raises(InvalidInputError, match=needed):
        Tokens(database).add(name, role)


def test_keyring_outlives_an_outage_of_the_store(database: Database, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(module, "FRESH_S", 0)

    async def check() -> None:
        keyring = Keyring(tokens)
        before = await keyring.all()
        with database.write() as connection:
            connection.execute(text("ALTER TABLE tokens RENAME TO hidden"))
        assert await keyring.all() == before == known

    tokens = Tokens(database)
    tokens.add("training", "write")
    known = tokens.list()
    asyncio.run(check())
    with database.write() as connection:
        connection.execute(text("ALTER TABLE hidden RENAME TO tokens"))
