"""Service: what the routes ask for, put together from store, catalog, jobs and workers."""

from __future__ import annotations

import asyncio
import hashlib
from collections.abc import Callable
from typing import ParamSpec, TypeVar

from api import desk
from api.catalog import Catalog, Shown
from api.jobs import Jobs
from api.pool import Pool, WorkerLostError
from api.refusal import Refusal, document
from api.resource import Representation
from api.settings import Settings
from api.shelf import Shelf
from api.single_flight import SingleFlight
from api.store import Store

P = ParamSpec("P")
T = TypeVar("T")

KNOWN_BODIES = 10_000


class Service:
    """Plans for problems, each solved once, kept in the store; create it inside a running event loop."""

    def __init__(self, settings: Settings) -> None:
        self.settings = settings
        self._store = Store(settings.database_url)
        self._desk = Pool(settings.desk_workers)
        self._catalog = Catalog(self._store, is_sound=self._is_sound, on_discard=lambda key: self._jobs.start(key))
        self._jobs = Jobs(settings, self._store, self._catalog.changed)
        self._submitting: SingleFlight[str] = SingleFlight()
        self._known: Shelf[str] = Shelf(KNOWN_BODIES)

    async def start(self) -> None:
        """Make the store ready and take up what an earlier service left unfinished."""
        await asyncio.to_thread(self._store.create)
        self._desk.start()
        for key in await asyncio.to_thread(self._store.recover):
            self._jobs.start(key)

    def close(self) -> None:
        """Answer everyone who waits, with what there is."""
        self._catalog.close()

    async def stop(self) -> None:
        """End every worker process."""
        await asyncio.gather(self._jobs.stop(), self._desk.stop())
        await asyncio.to_thread(self._store.close)

    async def submit(self, body: bytes) -> Shown:
        """Return the resource of the problem that a body holds; a new problem has a constructive plan in it.

        Raises
        ------
        Refusal
            If the body is no problem, or one without a plan.
        """
        name = hashlib.sha256(body).hexdigest()
        known = self._known.get(name)
        shown = None if known is None else await self._catalog.read(known)
        if shown is None or shown.job.status in ("failed", "cancelled"):
            key = await self._submitting.run(name, lambda: self._store_problem(body))
            self._known.put(name, key)
            shown = await self.read(key)
        if shown.job.status == "queued":
            self._jobs.start(shown.job.key)
        return shown

    async def read(self, key: str) -> Shown:
        """Return the resource with a key; raises ``Refusal`` if there is none."""
        return _found(await self._catalog.read(key), "key", key)

    async def wait(self, key: str, until: Callable[[Shown], bool], seconds: float) -> Shown:
        """Return the resource with a key when it is as wanted, or as it is when time is up."""
        return _found(await self._catalog.wait(key, until, seconds), "key", key)

    async def plan(self, plan_id: str) -> Representation:
        """Return the plan with an id; raises ``Refusal`` if there is none."""
        return _found(await self._catalog.plan(plan_id), "plan_id", plan_id)

    async def cancel(self, key: str) -> Shown:
        """Stop the solve of a problem, keeping its best plan; raises ``Refusal`` if there is no such problem."""
        await self.read(key)
        await self._jobs.cancel(key)
        return await self.read(key)

    async def _store_problem(self, body: bytes) -> str:
        key = await self._at_desk(desk.submit, self.settings, body)
        self._catalog.changed(key)
        return key

    async def _is_sound(self, plan: int) -> bool:
        return await self._at_desk(desk.is_sound, self.settings, plan)

    async def _at_desk(self, function: Callable[P, T], *args: P.args, **kwargs: P.kwargs) -> T:
        """Run a function in a desk worker, once more if the worker dies."""
        limit_s = self.settings.desk_limit_s
        for _ in range(2):
            try:
                return await self._desk.run(limit_s, function, *args, **kwargs)
            except WorkerLostError:
                continue
            except TimeoutError:
                detail = f"found no answer within {limit_s:g} s; needed a smaller problem, or a less busy service"
                raise Refusal(document("overrun", 503, "The problem takes too long", detail)) from None
        raise Refusal(document("crashed", 503, "A worker process crashed", "the worker died, twice; try again later"))


def _found(item: T | None, name: str, value: str) -> T:
    if item is None:
        detail = f"found no plan with {name} {value[:80]!r}; needed one that this service gave"
        raise Refusal(document("not_found", 404, "There is no such plan", detail))
    return item
