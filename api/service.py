"""Service: what the routes ask for, put together from store, catalog, jobs and workers."""

from __future__ import annotations

import asyncio
import hashlib
from collections.abc import AsyncIterator, Callable
from typing import TypeVar

from api import desk
from api.asking import read
from api.catalog import Catalog, Shown
from api.claims import Claims
from api.clerks import Clerks
from api.database import Database
from api.events import Events
from api.intake import Intake
from api.jobs import Jobs, LocalJobs, RemoteJobs
from api.listing import Listing, Page, Wanted
from api.profiles import Profiles
from api.queue import queue_of
from api.readiness import Readiness, look
from api.refusal import Refusal, document
from api.resource import Representation
from api.settings import Settings
from api.shelf import Shelf
from api.single_flight import SingleFlight
from api.store import Store
from api.sweeping import Sweeping
from api.sweeps import Sweeps

T = TypeVar("T")

KNOWN_BODIES = 10_000


class Service:
    """Plans for problems, each solved once, kept in the store; create it inside a running event loop.

    Parameters
    ----------
    settings
        How it runs.
    submitted
        Told of each problem that is posted what was known of it: ``exact``, ``near`` or ``none``.
    """

    def __init__(self, settings: Settings, submitted: Callable[[str], None]) -> None:
        self.settings = settings
        self.intake = Intake(settings)
        self._submitted = submitted
        self._database = Database(settings.database_url)
        self._store = Store(self._database, queue_of(settings))
        self._planners = Clerks(settings)
        self._judges = Clerks(settings)  # of their own, so that nobody who waits for a plan waits for them
        self._catalog = Catalog(self._store, is_sound=self._is_sound, on_discard=lambda key: self._jobs.start(key))
        self._jobs = self._jobs_of(settings)
        self._profiles = Profiles(self._database)
        self._listing = Listing(self._database)
        self._events = Events(self._catalog, self._store)
        self.sweeps = Sweeping(
            settings,
            Sweeps(self._database),
            planners=self._planners,
            judges=self._judges,
            posted=self._posted,
            stop=self.cancel,
        )
        self._submitting: SingleFlight[str] = SingleFlight()
        self._known: Shelf[str] = Shelf(KNOWN_BODIES)
        self._listening: asyncio.Task[None] | None = None

    async def start(self) -> None:
        """Make the store ready and take up what is queued."""
        await asyncio.to_thread(self._store.prepare)
        self._planners.start()
        if self.settings.on_postgresql:
            from api.notices import CLAIMS, PROBLEMS, listen  # a service on SQLite does without psycopg

            told = {PROBLEMS: self._catalog.changed, CLAIMS: self._jobs.end_claim}
            listening = listen(self.settings.database_url, told, hears=self._catalog.hear)
            self._listening = asyncio.create_task(listening)
        await self._jobs.open()
        await self.sweeps.start()

    def close(self) -> None:
        """Answer everyone who waits, with what there is."""
        self._catalog.close()
        self.sweeps.close()

    async def stop(self) -> None:
        """End every worker process."""
        await self.sweeps.end()
        if self._listening is not None:
            self._listening.cancel()
            await asyncio.gather(self._listening, return_exceptions=True)
        await asyncio.gather(self._jobs.stop(), self._planners.stop(), self._judges.stop())
        await asyncio.to_thread(self._database.close)

    async def submit(self, body: bytes, caller: str | None) -> Shown:
        """Return the resource of the problem that a body holds; a new problem has a constructive plan in it.

        Raises
        ------
        Refusal
            If the body is no problem, or one without a plan, or too many wait already.
        """
        name = hashlib.sha256(body).hexdigest()
        known = self._known.get(name)
        shown = None if known is None else await self._catalog.read(known)
        if shown is None or shown.job.status in ("failed", "cancelled"):
            # Each caller by its own: what is refused for the sake of one's share is not refused to others.
            key = await self._submitting.run(f"{name} {caller}", lambda: self._store_problem(name, body, caller))
            shown = await self.read(key)
        else:
            self._submitted("exact")
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

    async def follow(self, key: str, after: int | None) -> AsyncIterator[bytes]:
        """Return the events of a solve, from now on or from what came after an event, as bytes to send.

        Raises
        ------
        Refusal
            If there is no such problem, or too many listen already.
        """
        shown = await self.read(key)
        if self._events.listeners >= self.settings.max_listeners:
            detail = f"found {self._events.listeners} listeners; needed fewer; try again later, or poll"
            raise Refusal(document("busy", 503, "Too many listen", detail))
        return self._events.follow(shown, after)

    async def page(self, wanted: Wanted) -> Page:
        """Return the problems that are wanted, the last submitted first."""
        return await read(self._listing.page, wanted)

    async def judge(self, body: bytes) -> bytes:
        """Return the judgement of a plan; raises ``Refusal`` if the body is none, or passes the limits."""
        return await self._judges.serve(desk.judge, self.settings, body)

    async def compare(self, body: bytes) -> bytes:
        """Return what every constructive method makes of a problem; raises ``Refusal`` if the body is none."""
        return await self._judges.serve(desk.compare, self.settings, body)

    async def export(self, key: str, form: desk.Form) -> Representation:
        """Return the best plan so far of a problem in a format of others.

        Raises
        ------
        Refusal
            If there is none, or the format cannot say it.
        """
        plan = _found((await self.read(key)).job.plan, "key", key)
        return await asyncio.to_thread(
            Representation.of, await self._judges.serve(desk.export, self.settings, plan, form)
        )

    async def add_profile(self, body: bytes) -> bytes:
        """Store a profile and return how to refer to it; raises ``Refusal`` if the body is none."""
        return await self._planners.serve(desk.add_profile, self.settings, body)

    async def profile(self, name: str) -> Representation:
        """Return the latest profile with a name; raises ``Refusal`` if there is none."""
        text = await read(self._profiles.named, name)
        return await asyncio.to_thread(Representation.of, _found(text, "name", name, "profile"))

    async def profile_with_digest(self, digest: str) -> Representation:
        """Return the profile with a digest; raises ``Refusal`` if there is none."""
        text = await read(self._profiles.with_digest, digest)
        return await asyncio.to_thread(Representation.of, _found(text, "digest", digest, "profile"))

    async def readiness(self) -> Readiness:
        """Return which parts work."""
        elsewhere = self.settings.solving == "workers"
        return await look(self._database, self._planners.prove, elsewhere=elsewhere)

    def _jobs_of(self, settings: Settings) -> Jobs:
        if settings.solving == "workers":
            return RemoteJobs(self._store, self._catalog.changed)
        return LocalJobs(settings, self._store, Claims(self._database), self._catalog.changed)

    async def _store_problem(self, name: str, body: bytes, caller: str | None) -> str:
        submitted = await self._planners.serve(desk.submit, self.settings, body, caller)
        self._submitted(submitted.known)
        if submitted.for_ever:
            self._known.put(name, submitted.key)
        self._catalog.changed(submitted.key)
        return submitted.key

    def _posted(self, key: str) -> None:
        self._catalog.changed(key)
        self._jobs.start(key)

    async def _is_sound(self, plan: int) -> bool:
        # Whoever has less to do, for the plan is there and somebody waits for it.
        clerks = min(self._planners, self._judges, key=lambda clerks: clerks.at_work)
        return await clerks.run(desk.is_sound, self.settings, plan)


def _found(item: T | None, name: str, value: str, what: str = "plan") -> T:
    if item is None:
        detail = f"found no {what} with {name} {value[:80]!r}; needed one that this service has"
        raise Refusal(document("not_found", 404, f"There is no such {what}", detail))
    return item
