"""Leases, on a real store."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Iterator
from contextlib import asynccontextmanager
from pathlib import Path

import pytest
from sqlalchemy.exc import OperationalError

from api.claims import Claim, Claims
from api.database import Database
from api.leases import Leases
from api.store import Store
from heuristic import construct
from tests.api.servers import problem
from zbplan.problem import Problem

LEASE_S = 0.4
LIMIT_S = 30


@pytest.fixture
def database(tmp_path: Path) -> Iterator[Database]:
    made = Database(f"sqlite:///{tmp_path / 'plans.sqlite3'}")
    made.migrate()
    yield made
    made.close()


def claimed(database: Database, lease_s: float = LEASE_S) -> Claim:
    new = Problem.parse(problem())
    Store(database).add(new, construct(new))
    claim = Claims(database).claim(new.key, lease_s)
    assert claim is not None
    return claim


class Sweeps:
    """Counts beats, and fails at some of them."""

    def __init__(self, failing: int = 0) -> None:
        self.beats = 0
        self._failing = failing
        self._another = asyncio.Event()

    async def __call__(self) -> None:
        self.beats += 1
        self._another.set()
        if self.beats <= self._failing:
            raise OperationalError("SELECT 1", {}, Exception("away"))

    async def until(self, beats: int) -> None:
        async with asyncio.timeout(LIMIT_S):
            while self.beats < beats:
                self._another.clear()
                await self._another.wait()


@asynccontextmanager
async def beating(database: Database, sweeps: Sweeps) -> AsyncIterator[Leases]:
    leases = Leases(Claims(database), LEASE_S, sweeps)
    leases.start()
    try:
        yield leases
    finally:
        await leases.stop()


def test_claim_outlives_its_lease_while_it_is_held(database: Database) -> None:
    async def check() -> None:
        claim, other, sweeps = claimed(database), claimed(database), Sweeps()
        solve: asyncio.Future[None] = asyncio.get_running_loop().create_future()
        async with beating(database, sweeps) as leases:
            holding = asyncio.create_task(leases.hold(claim, solve))
            async with asyncio.timeout(LIMIT_S):
                while Store(database).queued() != [other.key]:
                    await sweeps.until(sweeps.beats + 1)
            solve.set_result(None)
            await holding
        assert Claims(database).problem(claim) is not None
        assert Claims(database).problem(other) is None

    asyncio.run(check())


def test_solve_ends_when_its_claim_is_gone(database: Database) -> None:
    async def check() -> None:
        claim = claimed(database)
        solve: asyncio.Future[None] = asyncio.get_running_loop().create_future()
        async with beating(database, Sweeps()) as leases:
            Store(database).cancel(claim.key)
            async with asyncio.timeout(LIMIT_S):
                await leases.hold(claim, solve)
        assert solve.cancelled()

    asyncio.run(check())


def test_who_stops_holding_stops_the_solve(database: Database) -> None:
    async def check() -> None:
        solve: asyncio.Future[None] = asyncio.get_running_loop().create_future()
        async with beating(database, Sweeps()) as leases:
            holding = asyncio.create_task(leases.hold(claimed(database), solve))
            await asyncio.sleep(0)
            holding.cancel()
            await asyncio.gather(holding, return_exceptions=True)
        assert solve.cancelled()

    asyncio.run(check())


def test_nothing_is_taken_from_others_just_after_an_outage(database: Database) -> None:
    """Ten beats are two and a half leases; the beats between which the store was well were never a whole one."""

    async def check() -> None:
        claim, sweeps = claimed(database, lease_s=-1), Sweeps(failing=10)
        async with beating(database, sweeps):
            await sweeps.until(10)
            assert Claims(database).problem(claim) is not None
            async with asyncio.timeout(LIMIT_S):
                while Store(database).queued() != [claim.key]:
                    await sweeps.until(sweeps.beats + 1)
        assert sweeps.beats >= 12

    asyncio.run(check())
