"""Claims: problems on their way through a solve, as those who solve them see the store.

A claim names its holder in the database, and every change says for which claim it is: what a holder that is thought
dead still finds changes nothing.
"""

from __future__ import annotations

import secrets
from collections.abc import Sequence
from dataclasses import dataclass
from typing import TypeVar

from sqlalchemy import ColumnElement, Connection, Select, select, update
from sqlalchemy.orm import InstrumentedAttribute
from sqlalchemy.sql import Update

from api.clock import EpochSeconds
from api.database import Database
from api.queue import Queue
from api.refusal import ErrorDocument, document
from api.resource import Status, now
from api.statements import UNCLAIMED, Found, best_of, change, insert_plan, of_this_revision, requeue, set_, stored_plan
from api.tables import ProblemRow
from zbplan.problem import Problem

T = TypeVar("T")

ATTEMPTS = 2
"""How often a solve is begun before the crashes of its workers count as failure."""

OWNERS = 5
"""How often a solve is begun before its loss with all of its service counts as failure: those die of other things."""

LEFT_BEHIND = document(
    "crashed", 500, "The solve crashed", f"found the services that solved it gone, {OWNERS} times; try again later"
)


@dataclass(frozen=True)
class Claim:
    """The right to solve a problem, which ends when it is renewed too late, or when the solve is cancelled."""

    key: str
    token: str
    time_limit_s: float


class Claims:
    """Claims on the problems in a database; each method is one transaction.

    Parameters
    ----------
    database
        Where they are.
    queue
        Told of every problem that is queued again, in the same transaction.
    """

    def __init__(self, database: Database, queue: Queue | None = None) -> None:
        self._database = database
        self._queue = queue

    def claim(self, key: str, lease_s: float) -> Claim | None:
        """Claim a queued problem for solving; None when it is not, or no longer, queued."""
        token = secrets.token_hex(16)
        claim = set_(key, ["queued"], status="solving", started_at=now(), claim=token, leased_until_s=_in(lease_s))
        claim = (
            claim.where(of_this_revision()).values(attempts=ProblemRow.attempts + 1).returning(ProblemRow.time_limit_s)
        )
        with self._database.write() as connection:
            time_limit_s = connection.execute(claim).scalar_one_or_none()
        return None if time_limit_s is None else Claim(key, token, time_limit_s)

    def renew(self, claims: Sequence[Claim], lease_s: float) -> set[Claim]:
        """Let claims count for longer; return those that still do."""
        renew = update(ProblemRow).where(ProblemRow.claim.in_([claim.token for claim in claims]))
        renew = renew.values(leased_until_s=_in(lease_s)).returning(ProblemRow.claim)
        with self._database.write() as connection:
            kept = set(connection.execute(renew).scalars())
        return {claim for claim in claims if claim.token in kept}

    def problem(self, claim: Claim) -> Problem | None:
        """Return what is to be solved; None when the claim is gone."""
        with self._database.read() as connection:
            text = connection.execute(_held(claim, ProblemRow.problem)).scalar_one_or_none()
        return None if text is None else Problem.parse_json(text)

    def best(self, claim: Claim) -> bytes | None:
        """Return the best plan so far of a claimed problem; None when there is none, or the claim is gone."""
        with self._database.read() as connection:
            plan = connection.execute(_held(claim, ProblemRow.plan)).scalar_one_or_none()
            return None if plan is None else stored_plan(connection, plan)

    def improve(self, claim: Claim, found: Found) -> None:
        """Keep a plan, which must be legal, if it is better than the one there or as good with a better bound."""
        with self._database.write() as connection:
            _improve(connection, claim, found)

    def finish(self, claim: Claim, found: Found) -> None:
        """Keep the last plan of a solve, if it is the best, and say that the solve is done."""
        with self._database.write() as connection:
            _improve(connection, claim, found)
            change(connection, _end(claim, "done"))

    def overrun(self, claim: Claim) -> None:
        """Say that a solve was killed past its time: done if there is a plan, which is then the best so far."""
        with self._database.write() as connection:
            change(connection, _end(claim, "done"))

    def fail(self, claim: Claim, error: ErrorDocument) -> None:
        """Say that a solve failed; the best plan so far stays."""
        with self._database.write() as connection:
            change(connection, _end(claim, "failed").values(error=error.to_bytes()))

    def lost(self, claim: Claim, error: ErrorDocument) -> None:
        """Say that the worker of a solve is gone: queued again, or failed when that was the last attempt."""
        with self._database.write() as connection:
            again = _give_back(claim).where(ProblemRow.attempts < ATTEMPTS)
            if not requeue(connection, self._queue, claim.key, again):
                change(connection, _end(claim, "failed").values(error=error.to_bytes()))

    def release(self, claim: Claim) -> None:
        """Queue a problem again whose solve was stopped through no fault of its own."""
        with self._database.write() as connection:
            requeue(connection, self._queue, claim.key, _give_back(claim).values(attempts=ProblemRow.attempts - 1))

    def reap(self) -> list[str]:
        """Queue again what was claimed by those who no longer renew their leases; return the keys."""
        left = select(ProblemRow.key, ProblemRow.claim, ProblemRow.time_limit_s)
        left = left.where(ProblemRow.status == "solving", ProblemRow.leased_until_s < EpochSeconds())
        with self._database.read() as connection:
            claims = [Claim(key, str(token), limit_s) for key, token, limit_s in connection.execute(left)]
        return [claim.key for claim in claims if self._take_away(claim)]

    def _take_away(self, claim: Claim) -> bool:
        late = ProblemRow.leased_until_s < EpochSeconds()
        again = _give_back(claim).where(late, ProblemRow.attempts < OWNERS)
        failed = _end(claim, "failed").values(error=LEFT_BEHIND.to_bytes()).where(late)
        with self._database.write() as connection:
            return requeue(connection, self._queue, claim.key, again) or change(connection, failed)


def _improve(connection: Connection, claim: Claim, found: Found) -> None:
    held = connection.execute(_held(claim, ProblemRow.key).with_for_update()).one_or_none()
    if held is None:
        return
    best = connection.execute(best_of(claim.key)).one_or_none()
    offered = (-found.iteration_ms, found.bound_ms)
    if best is None or offered > (-best.iteration_ms, best.bound_ms):
        change(connection, _of(claim).values(plan=insert_plan(connection, found)))


def _held(claim: Claim, column: InstrumentedAttribute[T]) -> Select[T]:
    """Select something of a claimed problem, unless the claim is gone."""
    return select(column).where(ProblemRow.key == claim.key, ProblemRow.claim == claim.token)


def _of(claim: Claim) -> Update:
    """Change a claimed problem, unless the claim is gone."""
    return update(ProblemRow).where(ProblemRow.key == claim.key, ProblemRow.claim == claim.token)


def _end(claim: Claim, status: Status) -> Update:
    return _of(claim).values(status=status, finished_at=now(), **UNCLAIMED)


def _give_back(claim: Claim) -> Update:
    return _of(claim).values(status="queued", **UNCLAIMED)


def _in(seconds: float) -> ColumnElement[float]:
    return EpochSeconds() + seconds
