"""Writing: what changes the store, in threads of its own: readers do not queue up behind those who wait to write."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from contextvars import copy_context
from typing import ParamSpec, TypeVar

P = ParamSpec("P")
T = TypeVar("T")

WRITERS = 4
"""Databases that let one write at a time gain nothing from more."""

_threads = ThreadPoolExecutor(WRITERS, thread_name_prefix="writer")


async def write(function: Callable[P, T], *args: P.args, **kwargs: P.kwargs) -> T:
    """Run a function that may wait until it can write, as ``asyncio.to_thread`` would."""
    context = copy_context()
    return await asyncio.get_running_loop().run_in_executor(_threads, lambda: context.run(function, *args, **kwargs))
