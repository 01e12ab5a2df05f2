"""Worker: solves for services on the same PostgreSQL, on as many machines as there are workers."""

from __future__ import annotations

import asyncio
import logging
import signal

from procrastinate import App, PsycopgConnector
from procrastinate.exceptions import ConnectorException
from procrastinate.jobs import Status

from api.asking import write
from api.claims import Claims
from api.database import Database, require_database
from api.jobs import LocalJobs
from api.libpq import conninfo
from api.logs import configure_logging
from api.notices import CLAIMS, listen
from api.settings import Settings
from api.store import Store
from api.worker_queue import QUEUE, TASK, WorkerQueue

logger = logging.getLogger(__name__)

PATIENCE_S = 1.0
"""How long to wait before the queue is opened again after PostgreSQL was out of order."""


def work(settings: Settings) -> None:
    """Solve until SIGINT or SIGTERM, then give back what is unfinished.

    Once it waits for problems, prints ``zbplan: N processes wait for problems``.

    Raises
    ------
    InvalidInputError
        If the database cannot be used.
    """
    configure_logging(settings.log_level)
    require_database(settings.database_url)
    asyncio.run(_work(settings))


async def _work(settings: Settings) -> None:
    loop, working = asyncio.get_running_loop(), asyncio.current_task()
    for stop in (signal.SIGINT, signal.SIGTERM):
        loop.add_signal_handler(stop, working.cancel)  # type: ignore[union-attr]
    worker = Worker(settings)
    try:
        await worker.run()
    except asyncio.CancelledError:
        logger.info("stopping")
    finally:
        await worker.stop()


class Worker:
    """Takes problems from the queue and solves them in processes of its own.

    The solves are not procrastinate's: they outlast an outage of the queue, and leases say who owns them.
    """

    def __init__(self, settings: Settings) -> None:
        self._settings = settings
        self._database = Database(settings.database_url)
        queue = WorkerQueue()
        self._store, claims = Store(self._database, queue), Claims(self._database, queue)
        self._app = App(connector=PsycopgConnector(conninfo=conninfo(settings.database_url), min_size=1, max_size=4))
        self._app.task(name=TASK)(self._solve)
        self._jobs = _QueuedJobs(settings, self._store, claims, changed=lambda key: None)
        self._listening: asyncio.Task[None] | None = None

    async def run(self) -> None:
        """Solve until cancelled."""
        await asyncio.to_thread(self._store.prepare)
        await self._jobs.open()
        self._listening = asyncio.create_task(listen(self._settings.database_url, {CLAIMS: self._jobs.end_claim}))
        print(f"zbplan: {self._settings.solver_workers} processes wait for problems", flush=True)  # noqa: T201
        while True:
            try:
                async with self._app.open_async():
                    await self._clear()
                    await self._app.run_worker_async(
                        queues=[QUEUE],
                        concurrency=self._settings.solver_workers,
                        delete_jobs="always",
                        shutdown_graceful_timeout=0,
                        install_signal_handlers=False,
                    )
            except ConnectorException as error:
                logger.warning("the queue cannot be used: %s", error)
            await asyncio.sleep(PATIENCE_S)

    async def stop(self) -> None:
        """Kill the solves and give them back."""
        if self._listening is not None:
            self._listening.cancel()
            await asyncio.gather(self._listening, return_exceptions=True)
        await self._jobs.stop()
        await asyncio.to_thread(self._database.close)

    async def _clear(self) -> None:
        """Clear away the jobs of workers that are gone; their problems were queued anew when their leases ran out."""
        for job in await self._app.job_manager.get_stalled_jobs(queue=QUEUE):
            await self._app.job_manager.finish_job(job, status=Status.FAILED, delete_job=True)

    async def _solve(self, key: str) -> None:
        await self._jobs.solved(key)


class _QueuedJobs(LocalJobs):
    """Solves what comes from the queue, and nothing that does not."""

    async def _take_up(self) -> None:
        await write(self._store.put_forgotten)
