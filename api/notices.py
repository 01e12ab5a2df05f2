"""Notices: what any process changes in the store's PostgreSQL, heard of at once.

Triggers on the problems send them; SQLite has no such thing, and there the store is asked again and again.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Callable, Mapping

import psycopg
from psycopg import sql

from api.libpq import conninfo

logger = logging.getLogger(__name__)

PROBLEMS = "zbplan_problems"
"""Tells the key of each problem that has changed for its readers."""

CLAIMS = "zbplan_claims"
"""Tells each claim that has ended."""

PATIENCE_S = 1.0
"""How long to wait before PostgreSQL is asked again after it was out of order."""

Told = Mapping[str, Callable[[str], None]]
"""Who is told what a channel says."""


async def listen(database_url: str, told: Told, *, hears: Callable[[bool], None] = lambda _: None) -> None:
    """Pass on what the channels say, until this is cancelled.

    Parameters
    ----------
    hears
        Told whether anything can be heard.
    """
    while True:
        try:
            await _listen(database_url, told, hears)
        except Exception as error:
            # Whatever it is, this must not be the end of it: all would go on, but slowly, and in silence.
            away = isinstance(error, psycopg.Error | OSError)
            logger.warning("changes elsewhere are not heard of, but looked for: %s", error, exc_info=not away)
        finally:
            hears(False)
        await asyncio.sleep(PATIENCE_S)


async def _listen(database_url: str, told: Told, hears: Callable[[bool], None]) -> None:
    async with await psycopg.AsyncConnection.connect(conninfo(database_url), autocommit=True) as connection:
        for channel in told:
            await connection.execute(sql.SQL("LISTEN {}").format(sql.Identifier(channel)))
        hears(True)
        async for notice in connection.notifies():
            told[notice.channel](notice.payload)
