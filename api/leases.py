"""Leases: what keeps a claim alive while its solve runs, and ends it when the process that made it is gone.

Of services that share a database, any may solve any problem. Each renews the leases of what it solves; a lease that
runs out means that its process, or its machine, is gone, and the problem is queued again.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Awaitable, Callable
from typing import Any

from api.asking import write
from api.claims import Claim, Claims
from api.database import OUT_OF_ORDER

logger = logging.getLogger(__name__)

BEAT_S = 1.0
"""How often at least the store is asked whether a claim still holds: a solve may have been cancelled elsewhere."""

BEATS_PER_LEASE = 4


class Leases:
    """Renews the leases of solves under way, stops solves whose claims are gone, and queues what others left behind.

    Parameters
    ----------
    claims, lease_s
        What is solved; how long they hold without a renewal.
    sweep
        Called after every beat, to take up what is queued.
    """

    def __init__(self, claims: Claims, lease_s: float, sweep: Callable[[], Awaitable[None]]) -> None:
        self._claims = claims
        self._lease_s = lease_s
        self._sweep = sweep
        self._held: dict[Claim, asyncio.Future[Any]] = {}
        self._beating: asyncio.Task[None] | None = None
        self._well_since_s = 0.0

    def start(self) -> None:
        """Begin to beat."""
        self._well_since_s = asyncio.get_running_loop().time()
        self._beating = asyncio.create_task(self._beat())

    async def stop(self) -> None:
        """Stop beating."""
        if self._beating is not None:
            self._beating.cancel()
            await asyncio.gather(self._beating, return_exceptions=True)

    async def hold(self, claim: Claim, solve: asyncio.Future[Any]) -> None:
        """Keep a claim alive until its solve ends; cancel the solve when the claim is gone, or this is cancelled."""
        self._held[claim] = solve
        try:
            await asyncio.wait([solve])
        finally:
            del self._held[claim]
            solve.cancel()

    def end(self, token: str) -> None:
        """Stop the solve of a claim that has ended, if it is held here; the next beat would find out, too."""
        for solve in [solve for claim, solve in self._held.items() if claim.token == token]:
            solve.cancel()

    async def _beat(self) -> None:
        clock = asyncio.get_running_loop()
        while True:
            await asyncio.sleep(min(BEAT_S, self._lease_s / BEATS_PER_LEASE))
            try:
                await self._renew()
                # After an outage of the store all leases have run out, and their holders need time to renew them.
                if clock.time() - self._well_since_s > self._lease_s:
                    for key in await write(self._claims.reap):
                        logger.warning("whoever solved %s is gone", key)
                await self._sweep()
            except Exception as error:
                # Whatever it is, this beat must not be the last one: leases would run out in silence.
                self._well_since_s = clock.time()
                logger.warning("a beat failed: %s", error, exc_info=not isinstance(error, OUT_OF_ORDER))

    async def _renew(self) -> None:
        held = list(self._held)
        if not held:
            return
        kept = await write(self._claims.renew, held, self._lease_s)
        for claim in set(held) - kept:
            if (solve := self._held.get(claim)) is not None:
                logger.info("stopping the solve of %s: its claim is gone", claim.key)
                solve.cancel()
