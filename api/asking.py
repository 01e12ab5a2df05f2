"""Asking: what asks the store, in threads of its own: readers do not queue up behind those who wait to write.

Nobody waits for a store for ever, though it may hold its threads: not a request, and not a service that stops.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from concurrent.futures import Future
from contextvars import copy_context
from queue import SimpleQueue
from threading import Thread
from typing import Any, ParamSpec, TypeVar

from sqlalchemy.exc import TimeoutError as NoAnswerError

P = ParamSpec("P")
T = TypeVar("T")

READERS = 8
WRITERS = 4
"""Databases that let one write at a time gain nothing from more."""

ANSWER_S = 25.0
"""How long the store is waited for: it gives up by itself before that, unless it hangs."""


class _Threads:
    """Threads that run one function after the other, and end with the process whatever those do."""

    def __init__(self, most: int, name: str) -> None:
        self._most = most
        self._name = name
        self._begun = 0
        self._tasks: SimpleQueue[tuple[Future[Any], Callable[[], Any]]] = SimpleQueue()

    def run(self, function: Callable[[], T]) -> Future[T]:
        """Run a function when a thread is free, unless its future is cancelled before."""
        future: Future[T] = Future()
        self._tasks.put((future, function))
        if self._begun < self._most:
            self._begun += 1
            Thread(target=self._work, name=self._name, daemon=True).start()
        return future

    def _work(self) -> None:
        while True:
            future, function = self._tasks.get()
            if future.set_running_or_notify_cancel():
                try:
                    future.set_result(function())
                except BaseException as error:
                    future.set_exception(error)
            del future, function  # what they hold is not held until the next task


_readers = _Threads(READERS, "reader")
_writers = _Threads(WRITERS, "writer")


async def read(function: Callable[P, T], *args: P.args, **kwargs: P.kwargs) -> T:
    """Run a function that reads the store.

    Raises
    ------
    NoAnswerError
        If it takes too long; it may go on nevertheless, and come to its end.
    """
    return await _ask(_readers, lambda: function(*args, **kwargs))


async def write(function: Callable[P, T], *args: P.args, **kwargs: P.kwargs) -> T:
    """Run a function that may wait until it can write; raises as ``read`` does."""
    return await _ask(_writers, lambda: function(*args, **kwargs))


async def _ask(threads: _Threads, function: Callable[[], T]) -> T:
    context = copy_context()
    try:
        async with asyncio.timeout(ANSWER_S) as limit:
            return await asyncio.wrap_future(threads.run(lambda: context.run(function)))
    except TimeoutError:
        if not limit.expired():
            raise
        raise NoAnswerError(f"found no answer of the store within {ANSWER_S:g} s") from None
