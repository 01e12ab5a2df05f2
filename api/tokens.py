"""Tokens: who may ask; of each token only a digest is stored."""

from __future__ import annotations

import asyncio
import hashlib
import hmac
import logging
import re
import secrets
from collections.abc import AsyncIterator, Sequence
from contextlib import asynccontextmanager, suppress
from dataclasses import dataclass
from typing import Literal, cast, get_args

from sqlalchemy import CursorResult, delete, insert, select
from sqlalchemy.exc import IntegrityError, SQLAlchemyError

from api.asking import read
from api.database import Database
from api.resource import now
from api.single_flight import SingleFlight
from api.tables import TokenRow
from zbplan.errors import Finding, InvalidInputError

logger = logging.getLogger(__name__)

Role = Literal["read", "write"]

FRESH_S = 2.0
"""How long it takes at most until a running service knows of a token that was added or revoked."""

PATIENCE_S = 1.0
"""How long a request waits for the store to say so, before the tokens last known count."""

_NAME = re.compile(r"[A-Za-z0-9._-]{1,64}")


@dataclass(frozen=True)
class Token:
    """Who a token belongs to and what they may do; ``digest`` is the SHA-256 of the token, which is itself random."""

    name: str
    role: Role
    digest: str
    added_at: str


class Tokens:
    """The tokens in a database."""

    def __init__(self, database: Database) -> None:
        self._database = database

    def add(self, name: str, role: str) -> str:
        """Return a new token, which nobody can read again.

        Raises
        ------
        InvalidInputError
            If there is one of that name, or the name or the role is none.
        """
        if not _NAME.fullmatch(name):
            _refuse("name", name, "1 to 64 letters, digits, dots, hyphens and underscores")
        if role not in get_args(Role):
            _refuse("role", role, f"one of {', '.join(get_args(Role))}")
        secret = secrets.token_urlsafe(32)
        row = {"name": name, "role": role, "digest": _digest(secret), "added_at": now()}
        try:
            with self._database.write() as connection:
                connection.execute(insert(TokenRow).values(row))
        except IntegrityError:
            _refuse("name", name, "a name that no token has; revoke the old one first")
        return secret

    def revoke(self, name: str) -> None:
        """Take a token away. Raises ``InvalidInputError`` if there is none of that name."""
        with self._database.write() as connection:
            result = connection.execute(delete(TokenRow).where(TokenRow.name == name))
        if not cast("CursorResult[None]", result).rowcount:
            _refuse("name", name, "the name of a token; `zbplan token list` lists them")

    def list(self) -> list[Token]:
        """Return all tokens by name."""
        columns = (getattr(TokenRow, field) for field in Token.__dataclass_fields__)
        with self._database.read() as connection:
            return [Token(*row) for row in connection.execute(select(*columns).order_by(TokenRow.name))]


class Keyring:
    """The tokens as a running service knows them, at most ``FRESH_S`` old while the store works."""

    def __init__(self, tokens: Tokens) -> None:
        self._tokens = tokens
        self._known: Sequence[Token] = ()
        self._read_at_s: float | None = None
        self._reading: SingleFlight[None] = SingleFlight()
        self._stays: dict[asyncio.Timeout, Token] = {}

    @asynccontextmanager
    async def stay(self, token: Token) -> AsyncIterator[asyncio.Timeout]:
        """Hold a block in which something is done for who has a token, and end it when the token is gone.

        Raises
        ------
        TimeoutError
            If the token is gone.
        """
        async with asyncio.timeout(None) as stay:
            self._stays[stay] = token
            try:
                yield stay
            finally:
                self.no_longer_watch(stay)

    def no_longer_watch(self, stay: asyncio.Timeout) -> None:
        """Let a block come to its end by itself."""
        self._stays.pop(stay, None)

    async def watch(self) -> None:
        """End what is done for those whose tokens are gone, until this is cancelled."""
        while True:
            await asyncio.sleep(FRESH_S)
            known = await self.all() if self._stays else ()
            for stay, token in list(self._stays.items()):
                if token not in known and not stay.expired():
                    stay.reschedule(asyncio.get_running_loop().time())

    async def all(self) -> Sequence[Token]:
        """Return the tokens; those last known where the store does not say."""
        if self._read_at_s is None or asyncio.get_running_loop().time() - self._read_at_s > FRESH_S:
            await self._read_soon()
        return self._known

    async def _read_soon(self) -> None:
        reading = self._reading.run("", self._read)
        if self._read_at_s is None:
            return await reading
        with suppress(TimeoutError):
            return await asyncio.wait_for(reading, PATIENCE_S)

    async def _read(self) -> None:
        try:
            self._known = await read(self._tokens.list)
        except SQLAlchemyError as error:
            if self._read_at_s is None:
                raise
            logger.warning("the tokens cannot be read; those last known count: %s", error)
        self._read_at_s = asyncio.get_running_loop().time()


def holder(tokens: Sequence[Token], secret: str) -> Token | None:
    """Return the token that a secret is, in a time that does not tell how much of it is right."""
    digest = _digest(secret)
    matches = [token for token in tokens if hmac.compare_digest(token.digest, digest)]
    return matches[0] if matches else None


def _digest(secret: str) -> str:
    return hashlib.sha256(secret.encode("utf-8", "surrogateescape")).hexdigest()


def _refuse(what: str, found: str, needed: str) -> None:
    raise InvalidInputError([Finding(what, repr(found[:80]), needed)])
