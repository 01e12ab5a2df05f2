"""Catalog: what readers see of the store, serialized once and served many times."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable
from contextlib import suppress
from dataclasses import dataclass

from api.asking import read, write
from api.resource import UNDER_WAY, Job, Representation, represent
from api.shelf import Shelf
from api.single_flight import SingleFlight
from api.store import Store

FRESH_S = 0.1
"""For this long a representation is served without asking the store; workers and other replicas change it too."""

HEARD_S = 2.0
"""For so long where their changes are told: should a notice get lost, it is found out then."""

STALE_S = 2.0
"""For this long it is served to others while one reader asks the store, so that they do not queue up behind it."""

ROOM_BYTES = 256 << 20

KNOWN_SOUND = 100_000
"""Of so many plans it is remembered that they were judged."""


@dataclass(frozen=True)
class Shown:
    """A job and what is sent of it; ``seen_at_s`` is when, by the clock of the event loop, the store last said so."""

    job: Job
    representation: Representation
    seen_at_s: float

    @property
    def under_way(self) -> bool:
        """Whether a better plan may still come."""
        return self.job.status in UNDER_WAY


class Catalog:
    """Reads jobs and plans, judging each stored plan once before it is served.

    Parameters
    ----------
    store
        Where they are.
    is_sound
        Judges a stored plan.
    on_discard
        Told the key of a problem whose damaged plan was thrown away.

    Attributes
    ----------
    news
        Set at the next change, and then another one.
    """

    def __init__(
        self, store: Store, *, is_sound: Callable[[int], Awaitable[bool]], on_discard: Callable[[str], None]
    ) -> None:
        self._store = store
        self._is_sound = is_sound
        self._on_discard = on_discard
        self._sound: Shelf[bool] = Shelf(KNOWN_SOUND)
        self._shown: Shelf[Shown] = Shelf(ROOM_BYTES)
        self._plans: Shelf[Representation] = Shelf(ROOM_BYTES)
        self._loading: SingleFlight[Shown | None] = SingleFlight()
        self._outdated: set[str] = set()
        self.news = asyncio.Event()
        self._hears = False
        self.closed = False

    async def read(self, key: str) -> Shown | None:
        """Return the resource with a key, at most ``STALE_S`` old; None if there is none."""
        shown = self._shown.get(key)
        age_s = asyncio.get_running_loop().time() - (shown.seen_at_s if shown else 0)
        if shown is not None and age_s < (STALE_S if self._loading.is_running(key) else self._fresh_s):
            return shown
        return await self._loading.run(key, lambda: self._load(key))

    async def wait(self, key: str, until: Callable[[Shown], bool], seconds: float) -> Shown | None:
        """Return the resource as soon as it is as wanted, or as it is when time is up or the service stops."""
        loop = asyncio.get_running_loop()
        deadline_s = loop.time() + seconds
        while True:
            news = self.news
            shown = await self.read(key)
            left_s = deadline_s - loop.time()
            if shown is None or until(shown) or left_s <= 0 or self.closed:
                return shown
            await self.later(news, left_s)

    async def later(self, news: asyncio.Event, seconds: float = HEARD_S) -> None:
        """Return when it is time to read again: there is news since, or a change elsewhere may not have been told."""
        with suppress(TimeoutError):
            await asyncio.wait_for(news.wait(), min(seconds, self._fresh_s))

    async def plan(self, plan_id: str) -> Representation | None:
        """Return the first stored plan with an id; None if there is none."""
        known = self._plans.get(plan_id)
        while known is None:
            row = await read(self._store.plan_row, plan_id)
            if row is None:
                return None
            document = await self._document(row)
            if document is not None:
                known = await asyncio.to_thread(Representation.of, document)
                self._plans.put(plan_id, known, known.size)
        return known

    def changed(self, key: str) -> None:
        """Tell those who wait that a job has changed."""
        self._shown.drop(key)
        if self._loading.is_running(key):
            self._outdated.add(key)
        news, self.news = self.news, asyncio.Event()
        news.set()

    def hear(self, hears: bool) -> None:
        """Note whether changes made by other processes are told, too."""
        self._hears = hears

    def close(self) -> None:
        """Let nobody wait any longer."""
        self.closed = True
        self.news.set()

    @property
    def _fresh_s(self) -> float:
        return HEARD_S if self._hears else FRESH_S

    async def _load(self, key: str) -> Shown | None:
        """Ask the store, and once more where the answer may be older than a change that was told meanwhile."""
        shown = await self._look(key)
        while key in self._outdated:
            self._outdated.discard(key)
            shown = await self._look(key)
        if shown is not None:
            self._shown.put(key, shown, shown.representation.size)
        return shown

    async def _look(self, key: str) -> Shown | None:
        seen_at_s = asyncio.get_running_loop().time()
        job = await read(self._store.job, key)
        if job is None:
            return None
        known = self._shown.get(key)
        if known is not None and known.job == job:
            return Shown(job, known.representation, seen_at_s)
        document = None if job.plan is None else await self._document(job.plan)
        if document is None and job.plan is not None:
            return await self._look(key)
        return Shown(job, await asyncio.to_thread(represent, job, document), seen_at_s)

    async def _document(self, row: int) -> bytes | None:
        """Return a stored plan; throw it away and return None if it is damaged."""
        document = await read(self._store.document, row)
        if document is not None and (self._sound.get(str(row)) or await self._is_sound(row)):
            self._sound.put(str(row), True)
            return document
        key = await write(self._store.discard, row)
        if key is not None:
            self._on_discard(key)
        return None
