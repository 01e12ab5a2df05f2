"""Single flight: many who ask for the same thing at once wait for one answer."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Coroutine
from typing import Any, Generic, TypeVar

T = TypeVar("T")


class SingleFlight(Generic[T]):
    """Runs one task per name; it goes on when those who wait go away."""

    def __init__(self) -> None:
        self._tasks: dict[str, asyncio.Task[T]] = {}

    async def run(self, name: str, begin: Callable[[], Coroutine[Any, Any, T]]) -> T:
        """Return what the running task of that name returns; begin it if there is none."""
        task = self._tasks.get(name)
        if task is None:
            task = self._tasks[name] = asyncio.create_task(begin())
            task.add_done_callback(lambda done: self._end(name, done))
        return await asyncio.shield(task)

    def is_running(self, name: str) -> bool:
        """Return whether there is a running task of that name."""
        return name in self._tasks

    def _end(self, name: str, task: asyncio.Task[T]) -> None:
        del self._tasks[name]
        if not task.cancelled():
            task.exception()  # read, because perhaps nobody is left who would
