"""Attempts: claimed problems in worker processes, whatever becomes of those."""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Awaitable, Callable
from typing import ParamSpec

from api.claims import Claim, Claims
from api.database import OUT_OF_ORDER
from api.leases import Leases
from api.pool import Pool, WorkerLostError
from api.refusal import ErrorDocument, document
from api.settings import Settings
from api.solving import solve_claimed

logger = logging.getLogger(__name__)

P = ParamSpec("P")

PATIENCE_S = 1.0
"""How long to wait before the store is told again what it could not be told."""


class Attempts:
    """Solves problems that can be claimed, as many at once as there are workers.

    Parameters
    ----------
    settings, claims
        How long a solve may take; what can be solved.
    changed
        Told the key of each problem whose solve ended.
    sweep
        Called now and then, to take up what is queued.
    """

    def __init__(
        self,
        settings: Settings,
        claims: Claims,
        *,
        changed: Callable[[str], None],
        sweep: Callable[[], Awaitable[None]],
    ) -> None:
        self._settings = settings
        self._claims = claims
        self._changed = changed
        self._pool = Pool(settings.solver_workers, settings.memory_per_solver_bytes)
        self._leases = Leases(claims, settings.lease_s, sweep)

    def start(self) -> None:
        """Start the worker processes, which takes them a moment."""
        self._pool.start()
        self._leases.start()

    async def stop(self) -> None:
        """Kill all workers."""
        await self._leases.stop()
        await self._pool.stop()

    async def run(self, key: str) -> None:
        """Solve a problem if it is queued; when this is cancelled, the worker is killed and the problem given back."""
        while (claim := await asyncio.to_thread(self._claims.claim, key, self._settings.lease_s)) is not None:
            try:
                await self._attempt(claim)
            except asyncio.CancelledError:
                await self._give_back(claim)
                raise
            self._changed(key)

    async def _attempt(self, claim: Claim) -> None:
        limit_s = claim.time_limit_s + self._settings.overtime_s
        solve = asyncio.ensure_future(self._pool.run(limit_s, solve_claimed, self._settings, claim))
        await self._leases.hold(claim, solve)
        if solve.cancelled() or (error := solve.exception()) is None:
            return
        if isinstance(error, TimeoutError):
            logger.warning("killed the solve of %s after %g s", claim.key, limit_s)
            await _patiently(self._claims.overrun, claim)
        elif isinstance(error, WorkerLostError):
            logger.warning("lost the solve of %s: %s", claim.key, error)
            crashed = document("crashed", 500, "The solve crashed", f"{error}, twice")
            await _patiently(self._claims.lost, claim, crashed)
        else:
            logger.error("the solve of %s failed", claim.key, exc_info=error)
            await _patiently(self._claims.fail, claim, self._failure(error))

    def _failure(self, error: BaseException) -> ErrorDocument:
        if isinstance(error, MemoryError):
            found = f"{self._settings.memory_per_solver_bytes} bytes for a solver process"
            detail = f"found no more than {found}; needed a smaller problem, or a larger solver_memory_bytes"
            return document("memory", 500, "The solve ran out of memory", detail)
        return document("internal", 500, "The solve failed", f"{type(error).__name__}: {error}")

    async def _give_back(self, claim: Claim) -> None:
        try:
            await asyncio.to_thread(self._claims.release, claim)
        except OUT_OF_ORDER:
            logger.warning("could not give back the solve of %s; its lease will run out", claim.key)


async def _patiently(tell: Callable[P, None], *args: P.args, **kwargs: P.kwargs) -> None:
    """Tell the store something, again and again while it is out of order."""
    while True:
        try:
            return await asyncio.to_thread(tell, *args, **kwargs)
        except OUT_OF_ORDER as error:
            logger.warning("the store cannot be used: %s", error)
            await asyncio.sleep(PATIENCE_S)
