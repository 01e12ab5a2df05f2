"""Jobs: queued problems on their way through the worker processes."""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Callable

from api.pool import Pool, WorkerLostError
from api.refusal import document
from api.resource import Job
from api.settings import Settings
from api.solving import solve_queued
from api.store import Store

logger = logging.getLogger(__name__)


class Jobs:
    """Solves queued problems, each once at a time, as many at once as there are workers.

    Parameters
    ----------
    settings, store
        How long a solve may take; where jobs are.
    changed
        Told the key of each job that changed.
    """

    def __init__(self, settings: Settings, store: Store, changed: Callable[[str], None]) -> None:
        self._settings = settings
        self._store = store
        self._changed = changed
        self._pool = Pool(settings.solver_workers)
        self._free = asyncio.Semaphore(settings.solver_workers)
        self._tasks: dict[str, asyncio.Task[None]] = {}
        self._again: set[str] = set()
        self._stopping = False

    def start(self, key: str) -> None:
        """See to it that a queued problem is solved."""
        if key in self._tasks:
            self._again.add(key)  # its task may have looked already
        elif not self._stopping:
            task = self._tasks[key] = asyncio.create_task(self._run(key))
            task.add_done_callback(lambda done: self._end(key, done))

    async def cancel(self, key: str) -> None:
        """Stop a solve; its best plan stays."""
        await asyncio.to_thread(self._store.cancel, key)
        task = self._tasks.get(key)
        if task is not None:
            task.cancel()
            await asyncio.wait([task])
        self._changed(key)

    async def stop(self) -> None:
        """Kill all workers; what they were solving is taken up when the service starts again."""
        self._stopping = True
        tasks = list(self._tasks.values())
        for task in tasks:
            task.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)
        await self._pool.stop()

    async def _run(self, key: str) -> None:
        async with self._free:
            while (job := await asyncio.to_thread(self._store.job, key)) is not None and job.status == "queued":
                await self._attempt(job)
                self._changed(key)

    async def _attempt(self, job: Job) -> None:
        limit_s = job.time_limit_s + self._settings.overtime_s
        try:
            await self._pool.run(limit_s, solve_queued, self._settings, job.key)
        except TimeoutError:
            logger.warning("killed the solve of %s after %g s", job.key, limit_s)
            await asyncio.to_thread(self._store.overrun, job.key)
        except WorkerLostError as lost:
            logger.warning("lost the solve of %s: %s", job.key, lost)
            crashed = document("crashed", 500, "The solve crashed", f"{lost}, twice")
            await asyncio.to_thread(self._store.lost, job.key, crashed)
        except Exception as error:
            logger.exception("the solve of %s failed", job.key)
            internal = document("internal", 500, "The solve failed", f"{type(error).__name__}: {error}")
            await asyncio.to_thread(self._store.fail, job.key, internal)

    def _end(self, key: str, task: asyncio.Task[None]) -> None:
        del self._tasks[key]
        if not task.cancelled() and (error := task.exception()) is not None:
            logger.error("the job of %s stopped", key, exc_info=error)
        if key in self._again:
            self._again.discard(key)
            self.start(key)
