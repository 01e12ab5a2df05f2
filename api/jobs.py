"""Jobs: who sees to it that queued problems are solved."""

from __future__ import annotations

import asyncio
import logging
from abc import ABC, abstractmethod
from collections.abc import Callable

from api.asking import read, write
from api.attempts import Attempts
from api.claims import Claims
from api.settings import Settings
from api.store import Store

logger = logging.getLogger(__name__)


class Jobs(ABC):
    """Solves of queued problems, each once at a time, wherever they run.

    Parameters
    ----------
    store
        Where problems are.
    changed
        Told the key of each problem that changed.
    """

    def __init__(self, store: Store, changed: Callable[[str], None]) -> None:
        self._store = store
        self._changed = changed

    @abstractmethod
    async def open(self) -> None:
        """Take up what is queued."""

    @abstractmethod
    def start(self, key: str) -> None:
        """See to it that a queued problem is solved."""

    async def cancel(self, key: str) -> None:
        """Stop a solve; its best plan stays."""
        await write(self._store.cancel, key)
        self._changed(key)

    @abstractmethod
    def end_claim(self, token: str) -> None:
        """Stop a solve whose claim has ended, if it runs here."""

    @abstractmethod
    async def stop(self) -> None:
        """End what runs here; it is taken up elsewhere, or when the service starts again."""


class RemoteJobs(Jobs):
    """Solves in workers elsewhere, who learn of queued problems, and of cancelled ones, from the store."""

    async def open(self) -> None:
        """Take up what is queued."""
        await write(self._store.put_forgotten)

    def start(self, key: str) -> None:
        """See to it that a queued problem is solved: that was done when it was queued."""

    def end_claim(self, token: str) -> None:
        """Stop a solve whose claim has ended, if it runs here: none does."""

    async def stop(self) -> None:
        """End what runs here, which is nothing."""


class LocalJobs(Jobs):
    """Solves in worker processes of this service, in the sequence in which problems were queued.

    Services that share a database take up each other's queued problems when they have time.
    """

    def __init__(self, settings: Settings, store: Store, claims: Claims, changed: Callable[[str], None]) -> None:
        super().__init__(store, changed)
        self._attempts = Attempts(settings, claims, changed=changed, sweep=self._take_up)
        self._free = asyncio.Semaphore(settings.solver_workers)
        self._tasks: dict[str, asyncio.Task[None]] = {}
        self._again: set[str] = set()
        self._stopping = False

    async def open(self) -> None:
        """Take up what is queued."""
        self._attempts.start()
        await self._take_up()

    def start(self, key: str) -> None:
        """See to it that a queued problem is solved."""
        if key in self._tasks:
            self._again.add(key)  # its task may have looked already
        elif not self._stopping:
            task = self._tasks[key] = asyncio.create_task(self._run(key))
            task.add_done_callback(lambda done: self._end(key, done))

    async def solved(self, key: str) -> None:
        """See to it that a queued problem is solved, and wait until it need not be solved here any longer."""
        self.start(key)
        while (task := self._tasks.get(key)) is not None:
            await asyncio.wait([task])
            await asyncio.sleep(0)  # its end may have begun another

    async def cancel(self, key: str) -> None:
        """Stop a solve and wait until nothing of it runs here; its best plan stays."""
        await super().cancel(key)
        task = self._tasks.get(key)
        if task is not None:
            task.cancel()
            await asyncio.wait([task])

    def end_claim(self, token: str) -> None:
        """Stop a solve whose claim has ended, if it runs here."""
        self._attempts.end_claim(token)

    async def stop(self) -> None:
        """Kill all workers and give back what they were solving."""
        self._stopping = True
        tasks = list(self._tasks.values())
        for task in tasks:
            task.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)
        await self._attempts.stop()

    async def _take_up(self) -> None:
        for key in await read(self._store.queued):
            if key not in self._tasks:
                self.start(key)

    async def _run(self, key: str) -> None:
        async with self._free:
            await self._attempts.run(key)

    def _end(self, key: str, task: asyncio.Task[None]) -> None:
        del self._tasks[key]
        if not task.cancelled() and (error := task.exception()) is not None:
            logger.error("the job of %s stopped", key, exc_info=error)
        if key in self._again:
            self._again.discard(key)
            self.start(key)
