"""Readiness: whether what the service is made of really works."""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Awaitable, Callable
from importlib.util import find_spec
from typing import Literal

from sqlalchemy import text, update

from api.asking import read, write
from api.database import Database
from api.refusal import Refusal, document
from api.sqlite_file import MovedError
from api.tables import ProblemRow
from zbplan.errors import Finding
from zbplan.record import Record

logger = logging.getLogger(__name__)

PATIENCE_S = 5.0
"""How long a part may take to show that it works."""

SILENCE_S = 30.0
"""A worker that was not heard of for longer is gone: procrastinate has them tell every 10 s."""

SOLVERS = {"cp_sat": "ortools", "ilp": "highspy"}
"""The module that each exact method needs."""


class Readiness(Record):
    """Whether the service does its work as well as it could.

    Attributes
    ----------
    status
        ``degraded``: plans are made and served, but some part that makes them better does not work.
    parts
        Of each part ``ok`` or what is wrong with it.
    """

    status: Literal["ready", "degraded"]
    parts: dict[str, str]


async def look(database: Database, desk: Callable[[], Awaitable[None]], *, elsewhere: bool) -> Readiness:
    """Try every part.

    Parameters
    ----------
    database
        Must take a transaction that writes.
    desk
        Goes through a worker process and back.
    elsewhere
        Whether ``zbplan worker`` solves, on this or other machines.

    Raises
    ------
    Refusal
        If one without which no plan can be made does not work.
    """
    needed = {"store": _outcome(write(_write_nothing, database)), "desk": _outcome(desk())}
    found = dict(zip(needed, await asyncio.gather(*needed.values()), strict=True))
    if broken := [Finding(part, outcome, "ok") for part, outcome in found.items() if outcome != "ok"]:
        raise Refusal(document("unready", 503, "The service is not ready", "; ".join(map(str, broken)), broken))
    useful = {"workers": await read(_workers, database)} if elsewhere else _solvers()
    return Readiness(status="ready" if set(useful.values()) == {"ok"} else "degraded", parts={**found, **useful})


def _solvers() -> dict[str, str]:
    return {method: "ok" if find_spec(module) else f"no module {module}" for method, module in SOLVERS.items()}


def _workers(database: Database) -> str:
    heard = text("SELECT count(*) FROM procrastinate_workers WHERE last_heartbeat > now() - :silence * interval '1 s'")
    with database.read() as connection:
        alive = connection.execute(heard, {"silence": SILENCE_S}).scalar_one()
    return "ok" if alive else f"no worker was heard of for {SILENCE_S:g} s; start one with `zbplan worker`"


async def _outcome(part: Awaitable[None]) -> str:
    try:
        async with asyncio.timeout(PATIENCE_S):
            await part
    except TimeoutError:
        return f"no answer within {PATIENCE_S:g} s"
    except MovedError as error:
        return str(error.orig)
    except Exception as error:
        # What it says may name the database's address and user, and whoever asks needs no token.
        logger.warning("a part does not work", exc_info=error)
        return type(error).__name__
    return "ok"


def _write_nothing(database: Database) -> None:
    with database.write() as connection:
        connection.execute(update(ProblemRow).where(ProblemRow.key == "").values(attempts=0))
