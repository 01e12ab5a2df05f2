"""Many who wait for one answer."""

from __future__ import annotations

import asyncio

import pytest

from api.single_flight import SingleFlight


class Work:
    """Something slow that counts how often it is begun."""

    def __init__(self) -> None:
        self.begun = 0
        self.release = asyncio.Event()

    async def __call__(self) -> int:
        self.begun += 1
        await self.release.wait()
        return self.begun


async def asking(flight: SingleFlight[int], work: Work, count: int) -> list[asyncio.Task[int]]:
    tasks = [asyncio.create_task(flight.run("a", work)) for _ in range(count)]
    await asyncio.sleep(0)
    await asyncio.sleep(0)
    return tasks


def test_all_get_the_answer_of_one() -> None:
    async def check() -> None:
        flight, work = SingleFlight[int](), Work()
        tasks = await asking(flight, work, 100)
        work.release.set()
        assert await asyncio.gather(*tasks) == [1] * 100
        assert await flight.run("a", work) == 2

    asyncio.run(check())


def test_who_goes_away_takes_nothing_from_the_others() -> None:
    async def check() -> None:
        flight, work = SingleFlight[int](), Work()
        first, second = await asking(flight, work, 2)
        first.cancel()
        with pytest.raises(asyncio.CancelledError):
            await first
        work.release.set()
        assert await second == 1

    asyncio.run(check())


def test_all_get_the_error_of_one_and_the_next_tries_again() -> None:
    async def fail() -> int:
        await asyncio.sleep(0)
        raise ValueError("no")

    async def check() -> None:
        flight = SingleFlight[int]()
        answers = await asyncio.gather(*(flight.run("a", fail) for _ in range(3)), return_exceptions=True)
        assert [str(answer) for answer in answers] == ["no"] * 3
        work = Work()
        work.release.set()
        assert await flight.run("a", work) == 1

    asyncio.run(check())


def test_names_are_apart() -> None:
    async def check() -> None:
        flight, work = SingleFlight[int](), Work()
        work.release.set()
        assert await asyncio.gather(flight.run("a", work), flight.run("b", work)) == [1, 2]

    asyncio.run(check())
