"""The pool, with real processes."""

from __future__ import annotations

import asyncio
import os
import signal
import time
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path

import pytest

from api.pool import Pool, WorkerLostError

LIMIT_S = 60


@asynccontextmanager
async def pool(workers: int = 1, memory_bytes: int | None = None) -> AsyncIterator[Pool]:
    made = Pool(workers, memory_bytes)
    made.start()
    try:
        yield made
    finally:
        await made.stop()


def fail() -> None:
    raise ValueError("found 1; needed 2")


def sleep_in_native_code(marker: Path) -> None:
    """Wait where no Python signal handler can run."""
    marker.write_text(str(os.getpid()))
    signal.pthread_sigmask(signal.SIG_BLOCK, [signal.SIGINT])
    time.sleep(LIMIT_S)


def alive(process: int) -> bool:
    return Path(f"/proc/{process}").exists()


async def begun(marker: Path) -> int:
    async with asyncio.timeout(LIMIT_S):
        while not marker.exists() or not marker.read_text():
            await asyncio.sleep(0.02)
    return int(marker.read_text())


async def gone(process: int) -> None:
    async with asyncio.timeout(LIMIT_S):
        while alive(process):
            await asyncio.sleep(0.02)


def test_runs_in_another_process_and_returns() -> None:
    async def check() -> None:
        async with pool() as workers:
            assert await workers.run(LIMIT_S, divmod, 7, 2) == (3, 1)
            assert await workers.run(LIMIT_S, os.getpid) != os.getpid()

    asyncio.run(check())


def test_exceptions_come_back() -> None:
    async def check() -> None:
        async with pool() as workers:
            with pytest.raises(ValueError, match="found 1; needed 2"):
                await workers.run(LIMIT_S, fail)

    asyncio.run(check())


def test_lost_worker_is_told_and_replaced() -> None:
    async def check() -> None:
        async with pool() as workers:
            with pytest.raises(WorkerLostError):
                await workers.run(LIMIT_S, os._exit, 7)
            assert await workers.run(LIMIT_S, divmod, 7, 2) == (3, 1)

    asyncio.run(check())


def test_death_of_an_idle_worker_breaks_nothing(tmp_path: Path) -> None:
    async def check() -> None:
        async with pool() as workers:
            for _ in range(3):
                idle = await workers.run(LIMIT_S, os.getpid)
                os.kill(idle, signal.SIGKILL)
                await gone(idle)
                async with asyncio.timeout(LIMIT_S):
                    while True:
                        try:
                            assert await workers.run(LIMIT_S, divmod, 7, 2) == (3, 1)
                            break
                        except WorkerLostError:
                            continue

    asyncio.run(check())


def test_overrun_kills_the_worker(tmp_path: Path) -> None:
    async def check() -> None:
        async with pool() as workers:
            with pytest.raises(TimeoutError):
                await workers.run(0.1, sleep_in_native_code, tmp_path / "marker")
            await gone(await begun(tmp_path / "marker"))

    asyncio.run(check())


def test_cancel_kills_the_worker(tmp_path: Path) -> None:
    async def check() -> None:
        async with pool() as workers:
            task = asyncio.create_task(workers.run(LIMIT_S, sleep_in_native_code, tmp_path / "marker"))
            worker = await begun(tmp_path / "marker")
            task.cancel()
            await gone(worker)
            with pytest.raises(asyncio.CancelledError):
                await task
            assert await workers.run(LIMIT_S, divmod, 7, 2) == (3, 1)

    asyncio.run(check())


def test_stop_kills_a_busy_worker(tmp_path: Path) -> None:
    async def check() -> None:
        async with pool(2) as workers:
            task = asyncio.create_task(workers.run(LIMIT_S, sleep_in_native_code, tmp_path / "marker"))
            worker = await begun(tmp_path / "marker")
            task.cancel()
            await workers.stop()
            assert not alive(worker)
            with pytest.raises(asyncio.CancelledError):
                await task

    asyncio.run(check())


def test_worker_that_wants_too_much_memory_gets_none_and_goes_on() -> None:
    async def check() -> None:
        async with pool(memory_bytes=1 << 30) as workers:
            with pytest.raises(MemoryError):
                await workers.run(LIMIT_S, bytearray, 1 << 30)
            assert await workers.run(LIMIT_S, len, bytes(1 << 20)) == 1 << 20

    asyncio.run(check())
