"""Notices: what any process changes in the store's PostgreSQL, heard of at once.

A trigger on the problems sends their keys; SQLite has no such thing, and there the store is asked again and again.
"""

from __future__ import annotations

import asyncio
import logging

import psycopg

from api.catalog import Catalog
from api.libpq import conninfo

logger = logging.getLogger(__name__)

LISTEN = "LISTEN zbplan_problems"

PATIENCE_S = 1.0
"""How long to wait before PostgreSQL is asked again after it was out of order."""


async def listen(database_url: str, catalog: Catalog) -> None:
    """Tell a catalog the key of every problem that changes, until this is cancelled."""
    while True:
        try:
            await _listen(database_url, catalog)
        except psycopg.Error as error:
            logger.warning("changes elsewhere are not heard of, but looked for: %s", error)
        finally:
            catalog.hears = False
        await asyncio.sleep(PATIENCE_S)


async def _listen(database_url: str, catalog: Catalog) -> None:
    async with await psycopg.AsyncConnection.connect(conninfo(database_url), autocommit=True) as connection:
        await connection.execute(LISTEN)
        catalog.hears = True
        async for notice in connection.notifies():
            catalog.changed(notice.payload)
