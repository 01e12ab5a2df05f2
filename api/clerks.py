"""Clerks: worker processes for what takes milliseconds to seconds, and the line before them, which has an end."""

from __future__ import annotations

import asyncio
import sys
from collections.abc import Callable
from contextlib import suppress
from typing import ParamSpec, TypeVar

from api import desk
from api.pool import Pool, WorkerLostError
from api.refusal import Refusal, document
from api.settings import Settings
from zbplan.errors import Finding

P = ParamSpec("P")
T = TypeVar("T")

CRASHED = document("crashed", 503, "A worker process crashed", "the worker died, twice; try again later")


LINE_S = 30.0
"""How much longer than a task may take somebody waits for it at most: one after the other may hang with the store."""


class Clerks:
    """Worker processes of one desk; they start when they are first needed, or told to.

    Parameters
    ----------
    settings
        How many they are, how much memory and time a task may take, and how many requests may wait.

    Attributes
    ----------
    at_work
        How many functions they run or are to run.
    """

    def __init__(self, settings: Settings) -> None:
        self._memory_bytes = settings.memory_per_solver_bytes
        self._limit_s = settings.desk_limit_s
        self._most = settings.max_waiting
        self._pool = Pool(settings.desk_workers, self._memory_bytes)
        self._waiting = 0
        self.at_work = 0
        self._went_on_at_s = 0.0

    def start(self) -> None:
        """Start the processes, which takes them a moment."""
        self._pool.start()

    async def stop(self) -> None:
        """Kill them."""
        await self._pool.stop()

    async def serve(self, function: Callable[P, T], *args: P.args, **kwargs: P.kwargs) -> T:
        """Run a function for a request; raises ``Refusal`` as ``run`` does, and where too many wait already."""
        if self._waiting >= self._most:
            detail = f"found {self._waiting} requests that wait for the desk; needed fewer; try again later"
            raise Refusal(document("busy", 503, "Too many wait", detail))
        self._waiting += 1
        try:
            return await self.run(function, *args, **kwargs)
        finally:
            self._waiting -= 1

    async def run(self, function: Callable[P, T], *args: P.args, **kwargs: P.kwargs) -> T:
        """Run a function in a worker, once more if the worker dies.

        Raises
        ------
        Refusal
            If its turn does not come, the worker dies again, or the function takes too long or too much memory.
        """
        if self.at_work == 0:
            self._go_on()
        self.at_work += 1
        try:
            async with asyncio.timeout(LINE_S + self._limit_s) as limit:
                return await self._persist(function, *args, **kwargs)
        except TimeoutError:
            if not limit.expired():
                raise
            detail = f"found {self.at_work} tasks at the desk, and no end of theirs within {LINE_S + self._limit_s:g} s"
            raise Refusal(document("busy", 503, "Too many wait", f"{detail}; needed fewer; try again later")) from None
        finally:
            self.at_work -= 1

    async def prove(self) -> None:
        """Go through a worker and back, unless one is at work that has not used up its time: it proves as much."""
        if self.at_work == 0 or asyncio.get_running_loop().time() - self._went_on_at_s > self._limit_s:
            await self.run(desk.nothing)

    async def _persist(self, function: Callable[P, T], *args: P.args, **kwargs: P.kwargs) -> T:
        for _ in range(2):
            with suppress(WorkerLostError):
                return await self._attempt(function, *args, **kwargs)
        raise Refusal(CRASHED)

    async def _attempt(self, function: Callable[P, T], *args: P.args, **kwargs: P.kwargs) -> T:
        try:
            return await self._pool.run(self._limit_s, function, *args, **kwargs)
        except MemoryError:
            found = f"more than the {self._memory_bytes} bytes that a worker process may have"
            finding = Finding("$", found, "a smaller problem, or a larger ZBPLAN_SOLVER_MEMORY_BYTES")
            refused = document("memory", 422, "The problem takes too much memory", str(finding), [finding])
            raise Refusal(refused) from None
        except TimeoutError:
            detail = f"found no answer within {self._limit_s:g} s; needed a smaller problem, or a less busy service"
            raise Refusal(document("overrun", 503, "The problem takes too long", detail)) from None
        finally:
            if not isinstance(sys.exception(), WorkerLostError):
                self._go_on()

    def _go_on(self) -> None:
        self._went_on_at_s = asyncio.get_running_loop().time()
