"""Pool: worker processes whose death costs the task in hand and nothing else."""

from __future__ import annotations

import asyncio
import logging
import multiprocessing
import os
import resource
import signal
import threading
from collections.abc import Callable
from concurrent.futures.process import BrokenProcessPool
from typing import ParamSpec, TypeVar

from pebble import ProcessExpired, ProcessFuture, ProcessPool

from api.logs import configure_logging
from heuristic import load_kernels

logger = logging.getLogger(__name__)

P = ParamSpec("P")
T = TypeVar("T")


class WorkerLostError(Exception):
    """The worker process died before its task was done."""


class Pool:
    """A fixed number of worker processes, started anew when they die.

    Parameters
    ----------
    workers
        How many tasks run at once; more wait.
    memory_bytes
        How much data each may have; one that asks for more gets a ``MemoryError``, or dies where native code asks.
    """

    def __init__(self, workers: int, memory_bytes: int | None = None) -> None:
        self._workers = workers
        self._memory_bytes = memory_bytes
        self._pool = self._new()

    def start(self) -> None:
        """Start the processes, which takes them a moment."""
        if not self._pool.active:
            raise RuntimeError("the worker pool has stopped")

    async def run(self, timeout_s: float | None, function: Callable[P, T], *args: P.args, **kwargs: P.kwargs) -> T:
        """Run a function in a worker; cancelling this kills the worker.

        Raises
        ------
        WorkerLostError
            If the worker died.
        TimeoutError
            If it ran longer than ``timeout_s`` and was killed.
        """
        future = self._schedule(timeout_s, function, *args, **kwargs)
        try:
            return await asyncio.wrap_future(future)
        except ProcessExpired as expired:
            raise WorkerLostError(f"the worker process ended with exit code {expired.exitcode}") from None
        except BrokenProcessPool as broken:
            raise WorkerLostError(f"the worker pool broke: {broken}") from None

    async def stop(self) -> None:
        """Kill the workers and wait until they are gone."""
        await asyncio.to_thread(_end, self._pool)

    def _new(self) -> ProcessPool:
        context = multiprocessing.get_context("spawn")
        prepared = (self._memory_bytes, logging.getLogger().level)
        return ProcessPool(self._workers, initializer=_prepare, initargs=prepared, context=context)

    def _schedule(
        self, timeout_s: float | None, function: Callable[P, T], *args: P.args, **kwargs: P.kwargs
    ) -> ProcessFuture[T]:
        try:
            return self._pool.schedule(function, args=args, kwargs=kwargs, timeout=timeout_s)
        except RuntimeError:
            # The pool takes the death of an idle worker for its own end.
            logger.warning("the worker pool broke; starting another")
            threading.Thread(target=_end, args=(self._pool,), daemon=True).start()
            self._pool = self._new()
            return self._pool.schedule(function, args=args, kwargs=kwargs, timeout=timeout_s)


def _end(pool: ProcessPool) -> None:
    pool.stop()  # type: ignore[no-untyped-call]
    pool.join()


def _prepare(memory_bytes: int | None, log_level: int) -> None:
    """In a new worker: log as the parent does, die at once when told to, even inside native code, or without it.

    Loading the kernels is no part of a task, which has a time limit.
    """
    configure_logging(log_level)
    if memory_bytes is not None:
        # What is written to, rather than RLIMIT_AS: native threads reserve much address space that they never use.
        resource.setrlimit(resource.RLIMIT_DATA, (memory_bytes, memory_bytes))
    signal.signal(signal.SIGTERM, signal.SIG_DFL)
    threading.Thread(target=_follow_parent, daemon=True).start()
    load_kernels()


def _follow_parent() -> None:
    parent = multiprocessing.parent_process()
    assert parent is not None  # noqa: S101 - this is a worker
    parent.join()
    os._exit(1)
