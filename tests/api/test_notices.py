"""Notices of changes, from a real PostgreSQL, and what a catalog makes of them."""

from __future__ import annotations

import asyncio
import threading
from collections.abc import AsyncIterator, Callable, Iterator
from contextlib import asynccontextmanager
from pathlib import Path

import pytest

from api import catalog as catalogs
from api import leases, notices
from api.catalog import Catalog
from api.claims import Claims
from api.database import Database
from api.leases import Leases
from api.notices import CLAIMS, PROBLEMS, listen
from api.resource import Job
from api.statements import Found
from api.store import Store
from heuristic import construct
from tests.api.postgresql import PostgreSQL, postgresql
from tests.api.stored import added, asked, bounded, claimed

LIMIT_S = 60


class Heard(Catalog):
    """A catalog that remembers what it is told."""

    def __init__(self, store: Store) -> None:
        super().__init__(store, is_sound=sound, on_discard=str)
        self.keys: list[str] = []
        self.hears = False

    def changed(self, key: str) -> None:
        super().changed(key)
        self.keys.append(key)

    def hear(self, hears: bool) -> None:
        super().hear(hears)
        self.hears = hears


async def sound(_: int) -> bool:
    return True


async def until(true: Callable[[], object]) -> None:
    async with asyncio.timeout(LIMIT_S):
        while not true():
            await asyncio.sleep(0.02)


@asynccontextmanager
async def hearing(url: str, store: Store) -> AsyncIterator[Heard]:
    catalog = Heard(store)
    listening = asyncio.create_task(listen(url, {PROBLEMS: catalog.changed}, hears=catalog.hear))
    try:
        await until(lambda: catalog.hears)
        yield catalog
    finally:
        listening.cancel()
        await asyncio.gather(listening, return_exceptions=True)
        assert not catalog.hears


@pytest.fixture
def own() -> Iterator[PostgreSQL]:
    with postgresql() as server:
        yield server


@pytest.fixture
def shared(own: PostgreSQL) -> Iterator[Database]:
    database = Database(own.url)
    database.migrate()
    yield database
    database.close()


def test_every_change_that_readers_see_is_heard_of_and_leases_are_not(own: PostgreSQL, shared: Database) -> None:
    store, claims = Store(shared), Claims(shared)

    async def check() -> None:
        async with hearing(own.url, store) as catalog:
            new = added(store, asked())
            claim = claimed(claims, new)
            claims.renew([claim], 60)
            claims.improve(claim, Found.of(bounded(construct(new), 5)))
            claims.finish(claim, Found.of(bounded(construct(new), 5)))
            last = added(store, asked())
            await until(lambda: last.key in catalog.keys)
            assert catalog.keys == [new.key] * 4 + [last.key]

    asyncio.run(check())


def test_outage_of_postgresql_is_told_and_ends(own: PostgreSQL, shared: Database) -> None:
    async def check() -> None:
        async with hearing(own.url, Store(shared)) as catalog:
            own.stop()
            await until(lambda: not catalog.hears)
            own.start()
            await until(lambda: catalog.hears)
            new = added(Store(shared), asked())
            await until(lambda: new.key in catalog.keys)

    asyncio.run(check())


@pytest.fixture
def patient(monkeypatch: pytest.MonkeyPatch) -> None:
    """Let nobody look again unless told."""
    monkeypatch.setattr(catalogs, "HEARD_S", 2 * LIMIT_S)


@pytest.mark.usefixtures("patient")
def test_who_waits_is_woken_by_the_notice(own: PostgreSQL, shared: Database) -> None:
    store, claims = Store(shared), Claims(shared)

    async def check() -> None:
        async with hearing(own.url, store) as catalog:
            new = added(store, asked())
            waiting = asyncio.create_task(catalog.wait(new.key, lambda shown: not shown.under_way, LIMIT_S))
            await until(lambda: catalog._shown.get(new.key) is not None)
            claims.finish(claimed(claims, new), Found.of(construct(new)))
            shown = await asyncio.wait_for(waiting, LIMIT_S)
            assert shown is not None
            assert shown.job.status == "done"

    asyncio.run(check())


async def nothing() -> None:
    """Take up what is queued, which is nothing."""


def test_solve_ends_as_soon_as_its_claim_does(
    own: PostgreSQL, shared: Database, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(leases, "BEAT_S", 2 * LIMIT_S)
    claims, hears = Claims(shared), asyncio.Event()

    async def check() -> None:
        held = Leases(claims, 4 * leases.BEAT_S, nothing)
        told = {CLAIMS: held.end}
        listening = asyncio.create_task(listen(own.url, told, hears=lambda now: hears.set() if now else None))
        held.start()
        async with asyncio.timeout(LIMIT_S):
            await hears.wait()
            solves: list[asyncio.Future[None]] = [asyncio.get_running_loop().create_future() for _ in range(2)]
            new = [added(Store(shared), asked()) for _ in solves]
            holding = [
                asyncio.create_task(held.hold(claimed(claims, problem), solve))
                for problem, solve in zip(new, solves, strict=True)
            ]
            await asyncio.sleep(0)
            Store(shared).cancel(new[0].key)
            await asyncio.wait([holding[0]])
        assert [solve.cancelled() for solve in solves] == [True, False]
        solves[1].cancel()
        listening.cancel()
        await asyncio.gather(held.stop(), holding[1], listening, return_exceptions=True)

    asyncio.run(check())


def test_whatever_goes_wrong_is_not_the_end_of_listening(
    own: PostgreSQL, shared: Database, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The first time the name of the server means nothing, and the second time who is told fails."""
    monkeypatch.setattr(notices, "PATIENCE_S", 0.01)
    infos, failures = notices.conninfo, [OSError("no such host"), ValueError("a mistake")]
    heard: list[str] = []

    def look_up(url: str) -> str:
        if len(failures) == 2:
            raise failures.pop(0)
        return infos(url)

    def hear(key: str) -> None:
        heard.append(key)
        if failures:
            raise failures.pop(0)

    async def check() -> None:
        listening = asyncio.create_task(listen(own.url, {PROBLEMS: hear}))
        async with asyncio.timeout(LIMIT_S):
            while len(heard) < 2:
                added(Store(shared), asked())
                await asyncio.sleep(0.02)
        listening.cancel()
        await asyncio.gather(listening, return_exceptions=True)

    monkeypatch.setattr(notices, "conninfo", look_up)
    asyncio.run(check())


class Slow(Store):
    """A store whose answers come late: after ``seen`` they wait for ``go``."""

    def __init__(self, database: Database) -> None:
        super().__init__(database)
        self.seen, self.go = threading.Event(), threading.Event()

    def job(self, key: str) -> Job | None:
        found = super().job(key)
        self.seen.set()
        assert self.go.wait(LIMIT_S)
        return found


@pytest.mark.usefixtures("patient")
def test_answer_older_than_a_notice_is_not_kept(tmp_path: Path) -> None:
    database = Database(f"sqlite:///{tmp_path / 'plans.sqlite3'}")
    database.migrate()
    store, claims = Slow(database), Claims(database)

    async def check() -> None:
        catalog = Heard(store)
        catalog.hear(True)
        new = added(store, asked())
        reading = asyncio.create_task(catalog.read(new.key))
        await until(store.seen.is_set)
        claims.finish(claimed(claims, new), Found.of(construct(new)))
        catalog.changed(new.key)
        store.go.set()
        for shown in (await reading, await catalog.read(new.key)):
            assert shown is not None
            assert shown.job.status == "done"

    asyncio.run(check())
    database.close()
