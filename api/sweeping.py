"""Sweeping: posts the cells of sweeps one after the other, so that they leave room for who waits for one plan."""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Awaitable, Callable
from contextlib import suppress
from dataclasses import dataclass
from typing import ParamSpec, TypeVar

from sqlalchemy.exc import SQLAlchemyError

from api import sweep_desk
from api.answers import RETRY_AFTER_S
from api.asking import read, write
from api.clerks import Clerks
from api.refusal import Refusal
from api.resource import Representation
from api.settings import Settings
from api.single_flight import SingleFlight
from api.sweeps import Sweeps

logger = logging.getLogger(__name__)

P = ParamSpec("P")
T = TypeVar("T")

LOOK_S = 0.5
"""How often who waits for a sweep looks at it."""

FULL = ("urn:zbplan:error:busy", "urn:zbplan:error:share")
"""The refusals after which there may be room later; any other would come again for ever."""


@dataclass(frozen=True)
class Table:
    """What is sent of a sweep."""

    representation: Representation
    under_way: bool


class Sweeping:
    """Takes sweeps from their POST to their last cell.

    Parameters
    ----------
    settings, sweeps
        How the service runs; where sweeps are.
    planners, judges
        Post cells; hold them against each other.
    posted
        Told the key of each problem that is posted for a cell.
    stop
        Stops the solve of a problem.
    """

    def __init__(
        self,
        settings: Settings,
        sweeps: Sweeps,
        *,
        planners: Clerks,
        judges: Clerks,
        posted: Callable[[str], None],
        stop: Callable[[str], Awaitable[object]],
    ) -> None:
        self._settings = settings
        self._sweeps = sweeps
        self._planners = planners
        self._judges = judges
        self._posted = posted
        self._stop = stop
        self._tasks: dict[str, asyncio.Task[None]] = {}
        self._one_at_a_time = asyncio.Lock()
        self._looking: SingleFlight[Table] = SingleFlight()
        self._closed = asyncio.Event()

    async def start(self) -> None:
        """Go on with what an earlier service left."""
        for key in await read(self._sweeps.unfinished):
            self._begin(key)

    def close(self) -> None:
        """Let nobody wait any longer."""
        self._closed.set()

    async def end(self) -> None:
        """Post no more cells."""
        tasks = list(self._tasks.values())
        for task in tasks:
            task.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)

    async def submit(self, body: bytes, caller: str | None) -> str:
        """Keep the sweep that a body holds and begin to post its cells; return its key.

        Raises
        ------
        Refusal
            If the body is none, or has too many cells.
        """
        key = await self._planners.serve(sweep_desk.add, self._settings, body, caller)
        self._begin(key)
        return key

    async def table(self, key: str, wait_s: float) -> Table:
        """Return what came of each cell, once all are final or the time is up; raises ``Refusal`` if there is none."""
        deadline_s = asyncio.get_running_loop().time() + wait_s
        while True:
            table = await self._looking.run(key, lambda: self._look(key))
            left_s = deadline_s - asyncio.get_running_loop().time()
            if not table.under_way or left_s <= 0 or self._closed.is_set():
                return table
            self._begin(key)  # the service that began it may be gone
            with suppress(TimeoutError):
                await asyncio.wait_for(self._closed.wait(), min(left_s, LOOK_S))

    async def cancel(self, key: str) -> None:
        """Stop the solves of all cells and post no more; raises ``Refusal`` if there is no such sweep."""
        if (task := self._tasks.get(key)) is not None:
            task.cancel()
            await asyncio.wait([task])
        for problem in await self._planners.run(sweep_desk.cancel, self._settings, key):
            await self._stop(problem)

    async def _look(self, key: str) -> Table:
        body, under_way = await self._judges.serve(sweep_desk.table_of, self._settings, key)
        return Table(await asyncio.to_thread(Representation.of, body), under_way)

    def _begin(self, key: str) -> None:
        if key not in self._tasks and not self._closed.is_set():
            task = self._tasks[key] = asyncio.create_task(self._post(key))
            task.add_done_callback(lambda done: self._finish(key, done))

    async def _post(self, key: str) -> None:
        for cell in await self._patiently(self._waiting, key):
            if problem := await self._patiently(self._submit, key, cell):
                self._posted(problem)

    async def _patiently(self, step: Callable[P, Awaitable[T | None]], *args: P.args, **kwargs: P.kwargs) -> T:
        """Take a step, when no other sweep does, again and again while it comes to nothing or the store fails."""
        while True:
            try:
                async with self._one_at_a_time:
                    done = await step(*args, **kwargs)
                if done is not None:
                    return done
            except SQLAlchemyError as error:
                logger.warning("the store cannot be used: %s", error)
            await asyncio.sleep(RETRY_AFTER_S)

    async def _waiting(self, key: str) -> list[int] | None:
        """Return the cells that are not posted; None while the service cannot say."""
        try:
            return await self._planners.run(sweep_desk.waiting, self._settings, key)
        except Refusal as refusal:
            if refusal.document.status < 500:
                raise
            logger.warning("the sweep %s cannot be looked at: %s", key, refusal.document.detail)
            return None

    async def _submit(self, key: str, cell: int) -> str | None:
        """Return the key of a cell's problem, an empty one where it is refused, and None while there is no room."""
        try:
            return await self._planners.run(sweep_desk.submit, self._settings, key, cell)
        except Refusal as refusal:
            if refusal.document.type in FULL:
                return None
            await write(self._sweeps.note, key, cell, "", refusal.document)
            return ""

    def _finish(self, key: str, task: asyncio.Task[None]) -> None:
        del self._tasks[key]
        if not task.cancelled() and (error := task.exception()) is not None:
            logger.error("the sweep %s stopped", key, exc_info=error)
