"""Attempts: claimed problems in worker processes, whatever becomes of those."""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Awaitable, Callable
from functools import partial

from api.asking import write
from api.claims import Claim, Claims
from api.database import OUT_OF_ORDER
from api.leases import Leases
from api.pool import Pool, WorkerLostError
from api.refusal import ErrorDocument, Refusal, document
from api.settings import Settings
from api.solving import solve_claimed
from api.unsent import Unsent

logger = logging.getLogger(__name__)

PATIENCE_S = 1.0
"""How long to wait before the store is told again what it could not be told."""

PARTING_S = 2.0
"""How long a service that stops waits for the store to take a solve back: its lease runs out in any case."""

TORN = document(
    "store", 500, "The solve was lost", "found only part of its last plan, and the store out of order before, twice"
)


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

    def end_claim(self, token: str) -> None:
        """Stop a solve whose claim has ended, if it runs here."""
        self._leases.end(token)

    async def stop(self) -> None:
        """Kill all workers."""
        await self._leases.stop()
        await self._pool.stop()

    async def run(self, key: str) -> None:
        """Solve a problem if it is queued; when this is cancelled, the worker is killed and the problem given back."""
        while (claim := await write(self._claims.claim, key, self._settings.lease_s)) is not None:
            try:
                await self._attempt(claim)
            except asyncio.CancelledError:
                await self._give_back(claim)
                raise
            self._changed(key)

    async def _attempt(self, claim: Claim) -> None:
        attempt = asyncio.ensure_future(self._see_through(claim))
        await self._leases.hold(claim, attempt)
        if not attempt.cancelled():
            attempt.result()

    async def _see_through(self, claim: Claim) -> None:
        """Solve a claimed problem and tell the store what came of it, however long the store is out of order."""
        with Unsent.held() as unsent:
            tell = await self._outcome(claim, unsent)
            if (found := await asyncio.to_thread(unsent.plan)) is not None:
                await _patiently(partial(self._claims.improve, claim, found))
        await _patiently(tell)

    async def _outcome(self, claim: Claim, unsent: Unsent) -> Callable[[], None]:
        """Return what the store is to be told, once a worker has solved a problem or failed to."""
        limit_s = claim.time_limit_s + self._settings.overtime_s
        try:
            found = await self._pool.run(limit_s, solve_claimed, self._settings, claim, unsent.place)
            # Without a plan the claim is gone, and whatever the store is told changes nothing.
            return partial(self._claims.release, claim) if found is None else partial(self._claims.finish, claim, found)
        except Refusal as refusal:
            return partial(self._claims.fail, claim, refusal.document)
        except OUT_OF_ORDER as error:
            logger.warning("the solve of %s could not begin: %s", claim.key, error)
            await asyncio.sleep(PATIENCE_S)
            return partial(self._claims.release, claim)
        except TimeoutError:
            logger.warning("killed the solve of %s after %g s", claim.key, limit_s)
            if unsent.is_torn():
                return partial(self._claims.lost, claim, TORN)
            return partial(self._claims.overrun, claim)
        except WorkerLostError as error:
            logger.warning("lost the solve of %s: %s", claim.key, error)
            return partial(self._claims.lost, claim, document("crashed", 500, "The solve crashed", f"{error}, twice"))
        except Exception as error:
            logger.exception("the solve of %s failed", claim.key)
            return partial(self._claims.fail, claim, self._failure(error))

    def _failure(self, error: BaseException) -> ErrorDocument:
        if isinstance(error, MemoryError):
            found = f"{self._settings.memory_per_solver_bytes} bytes for a solver process"
            detail = f"found no more than {found}; needed a smaller problem, or a larger solver_memory_bytes"
            return document("memory", 500, "The solve ran out of memory", detail)
        return document("internal", 500, "The solve failed", f"{type(error).__name__}: {error}")

    async def _give_back(self, claim: Claim) -> None:
        try:
            async with asyncio.timeout(PARTING_S):
                await write(self._claims.release, claim)
        except (TimeoutError, *OUT_OF_ORDER):
            logger.warning("could not give back the solve of %s; its lease will run out", claim.key)


async def _patiently(tell: Callable[[], None]) -> None:
    """Tell the store something, again and again while it is out of order."""
    while True:
        try:
            return await write(tell)
        except OUT_OF_ORDER as error:
            logger.warning("the store cannot be used: %s", error)
            await asyncio.sleep(PATIENCE_S)
