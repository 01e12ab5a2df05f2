"""Events: what a solve finds, as server-sent events for those who look on."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator

from api.asking import read
from api.catalog import Catalog, Shown
from api.resource import Progress
from api.store import Store
from zbplan.plan import Bound
from zbplan.record import canonical_json

KEEP_ALIVE_S = 15.0
KEEP_ALIVE = b": the solve goes on\n\n"


class Events:
    """Lets many listeners follow a solve; each gets everything.

    Parameters
    ----------
    catalog, store
        How far a solve is; what it has found.
    """

    def __init__(self, catalog: Catalog, store: Store) -> None:
        self._catalog = catalog
        self._store = store
        self.listeners = 0

    async def follow(self, shown: Shown, after: int | None) -> AsyncIterator[bytes]:
        """Yield ``incumbent``, ``bound`` and ``done`` events, from the last state on or from what came after an event.

        A stopping service ends the stream without ``done``; the listener comes back with its last event.
        """
        self.listeners += 1
        try:
            async for event in self._events(shown, after):
                yield event
        finally:
            self.listeners -= 1

    async def _events(self, shown: Shown, after: int | None) -> AsyncIterator[bytes]:
        key, last = shown.job.key, None
        seen = (shown.job.plan or 1) - 1 if after is None else after
        quiet_since_s = asyncio.get_running_loop().time()
        while True:
            news = self._catalog.news
            shown = await self._catalog.read(key) or shown
            for item in await self._found(shown, seen):
                yield _found(item, last)
                seen, last, quiet_since_s = item.id, item, asyncio.get_running_loop().time()
            if not shown.under_way:
                yield _event("done", None, {"key": key, "status": shown.job.status})
            if not shown.under_way or self._catalog.closed:
                return
            if asyncio.get_running_loop().time() - quiet_since_s > KEEP_ALIVE_S:
                quiet_since_s = asyncio.get_running_loop().time()
                yield KEEP_ALIVE
            await self._catalog.later(news)

    async def _found(self, shown: Shown, seen: int) -> list[Progress]:
        if (shown.job.plan or 0) <= seen:
            return []
        return await read(self._store.progress, shown.job.key, seen)


def _found(item: Progress, last: Progress | None) -> bytes:
    kind = "bound" if last is not None and last.plan_id == item.plan_id else "incumbent"
    bound = Bound.of(item.bound_ms, item.iteration_ms, "")
    data = {"plan_id": item.plan_id, "iteration_ms": item.iteration_ms, "bound_ms": item.bound_ms, "gap": bound.gap}
    return _event(kind, item.id, data)


def _event(kind: str, identifier: int | None, data: dict[str, object]) -> bytes:
    identity = "" if identifier is None else f"id: {identifier}\n"
    return f"{identity}event: {kind}\ndata: {canonical_json(data)}\n\n".encode()
