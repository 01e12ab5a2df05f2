"""Store: problems and their plans, as every process of the service sees them.

Each method is one transaction. What may change a job says so in its ``WHERE``, so that of two processes one wins.
"""

from __future__ import annotations

import hashlib
import secrets
from collections.abc import Sequence
from dataclasses import dataclass
from datetime import UTC, datetime, timedelta
from typing import Any, Literal, TypeVar, cast

import numpy as np
from sqlalchemy import ColumnElement, Connection, Select, delete, func, insert, select, tuple_, update
from sqlalchemy.engine import CursorResult
from sqlalchemy.exc import IntegrityError
from sqlalchemy.orm import InstrumentedAttribute
from sqlalchemy.sql import Update

from api.clock import EpochSeconds
from api.database import Database
from api.documents import text_of
from api.near import distance, measures_of, shape_of
from api.queue import Queue
from api.refusal import ErrorDocument, document
from api.resource import UNDER_WAY, Job, Progress, Status, Summary, now
from api.schema import upgrade
from api.tables import PlanRow, ProblemRow
from zbplan.plan import Bound, Plan
from zbplan.problem import REVISION, Problem

T = TypeVar("T")

ATTEMPTS = 2
"""How often a solve is begun before the crashes of its workers count as failure."""

LOOKED_AT = 100
"""Of how many problems of a shape, the last submitted ones, the nearest are sought."""

OWNERS = 5
"""How often a solve is begun before its loss with all of its service counts as failure: those die of other things."""

LEFT_BEHIND = document(
    "crashed", 500, "The solve crashed", f"found the services that solved it gone, {OWNERS} times; try again later"
)

_UNCLAIMED: dict[str, object] = {"claim": None, "leased_until_s": None}

_JOB = tuple(getattr(ProblemRow, name) for name in Job.__dataclass_fields__)
_PROGRESS = tuple(getattr(PlanRow, name) for name in Progress.__dataclass_fields__)
_SUMMARY = (
    *(getattr(ProblemRow, name) for name in ("key", "status", "submitted_at", "started_at", "finished_at")),
    *(getattr(PlanRow, name) for name in ("plan_id", "iteration_ms", "bound_ms")),
)


@dataclass(frozen=True)
class Claim:
    """The right to solve a problem, which ends when it is renewed too late, or when the solve is cancelled."""

    key: str
    token: str
    time_limit_s: float


class Store:
    """Problems, how far their solves are, and plans.

    Parameters
    ----------
    database
        Where they are.
    queue
        Told of every problem that is queued, in the same transaction.
    """

    def __init__(self, database: Database, queue: Queue | None = None) -> None:
        self._database = database
        self._queue = queue

    def prepare(self) -> None:
        """Bring the database to what this version of the service uses."""
        with self._database.write() as connection:
            upgrade(connection)
            if self._queue is not None:
                self._queue.prepare(connection)

    def add(self, problem: Problem, plan: Plan, caller: str | None = None) -> None:
        """Store a new problem with its first plan, ready to be solved; if it is there already, leave it."""
        row = {
            "key": problem.key,
            "problem": text_of(problem),
            "status": "queued",
            "submitted_at": now(),
            "submitted_by": caller,
            "time_limit_s": problem.time_limit_s,
            "attempts": 0,
            "shape": shape_of(problem),
            "measures": measures_of(problem).tobytes(),
            "revision": REVISION,
        }
        try:
            with self._database.write() as connection:
                first = _insert_plan(connection, plan)
                connection.execute(insert(ProblemRow).values({**row, "plan": first}))
                self._put(connection, problem.key)
        except IntegrityError:
            if self.job(problem.key) is None:
                raise

    def near(self, problem: Problem, most: int, *, revisions: Literal["this", "all"]) -> list[bytes]:
        """Return the best plans of the problems most like one, the nearest first: of its shape, and looked into."""
        near = select(ProblemRow.plan, ProblemRow.measures).where(
            ProblemRow.shape == shape_of(problem),
            ProblemRow.key != problem.key,
            ProblemRow.status != "queued",
            ProblemRow.plan.is_not(None),
        )
        if revisions == "this":
            near = near.where(ProblemRow.revision == REVISION)
        with self._database.read() as connection:
            rows = connection.execute(near.order_by(ProblemRow.submitted_at.desc()).limit(LOOKED_AT)).all()
        measures = measures_of(problem)
        nearest = sorted(rows, key=lambda row: distance(measures, np.frombuffer(row.measures, dtype=measures.dtype)))
        documents = (self.document(row.plan) for row in nearest[:most])
        return [document for document in documents if document is not None]

    def best(self, claim: Claim) -> bytes | None:
        """Return the best plan so far of a claimed problem; None when there is none, or the claim is gone."""
        with self._database.read() as connection:
            plan = connection.execute(_held(claim, ProblemRow.plan)).scalar_one_or_none()
        return None if plan is None else self.document(plan)

    def reopen(self, problem: Problem, retry_after_s: float) -> bool:
        """Take up a known problem again where that may help; return whether it is known.

        It may help where the solve was cancelled, where it failed a while ago, and where this problem allows more time
        than the solve had and the plan is not proven optimal.
        """
        job = self.job(problem.key)
        if job is None:
            return False
        if self._worth_another_solve(job, problem.time_limit_s, retry_after_s):
            again = _queue(problem.key, [job.status]).values(
                problem=text_of(problem), time_limit_s=problem.time_limit_s
            )
            with self._database.write() as connection:
                self._requeue(connection, problem.key, again)
        return True

    def _worth_another_solve(self, job: Job, time_limit_s: float, retry_after_s: float) -> bool:
        if job.status == "failed":
            since = datetime.now(UTC) - datetime.fromisoformat(job.finished_at or job.submitted_at)
            return since >= timedelta(seconds=retry_after_s)
        if job.status == "done":
            return time_limit_s > job.time_limit_s and not self._is_optimal(job.key)
        return job.status == "cancelled" or (job.status == "queued" and time_limit_s > job.time_limit_s)

    def _is_optimal(self, key: str) -> bool:
        with self._database.read() as connection:
            best = connection.execute(_best(key)).one_or_none()
        return best is not None and Bound.of(best.bound_ms, best.iteration_ms, "").proven_optimal

    def claim(self, key: str, lease_s: float) -> Claim | None:
        """Claim a queued problem for solving; None when it is not, or no longer, queued."""
        token = secrets.token_hex(16)
        claim = _set(key, ["queued"], status="solving", started_at=now(), claim=token, leased_until_s=_in(lease_s))
        claim = claim.values(attempts=ProblemRow.attempts + 1).returning(ProblemRow.time_limit_s)
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

    def improve(self, claim: Claim, plan: Plan) -> None:
        """Keep a plan, which must be legal, if it is better than the one there or as good with a better bound."""
        with self._database.write() as connection:
            _improve(connection, claim, plan)

    def finish(self, claim: Claim, plan: Plan) -> None:
        """Keep the last plan of a solve, if it is the best, and say that the solve is done."""
        with self._database.write() as connection:
            _improve(connection, claim, plan)
            _change(connection, _end(claim, "done"))

    def overrun(self, claim: Claim) -> None:
        """Say that a solve was killed past its time: done if there is a plan, which is then the best so far."""
        with self._database.write() as connection:
            _change(connection, _end(claim, "done"))

    def fail(self, claim: Claim, error: ErrorDocument) -> None:
        """Say that a solve failed; the best plan so far stays."""
        with self._database.write() as connection:
            _change(connection, _end(claim, "failed").values(error=error.to_bytes()))

    def lost(self, claim: Claim, error: ErrorDocument) -> None:
        """Say that the worker of a solve is gone: queued again, or failed when that was the last attempt."""
        with self._database.write() as connection:
            again = _give_back(claim).where(ProblemRow.attempts < ATTEMPTS)
            if not self._requeue(connection, claim.key, again):
                _change(connection, _end(claim, "failed").values(error=error.to_bytes()))

    def release(self, claim: Claim) -> None:
        """Queue a problem again whose solve was stopped through no fault of its own."""
        with self._database.write() as connection:
            self._requeue(connection, claim.key, _give_back(claim).values(attempts=ProblemRow.attempts - 1))

    def reap(self) -> None:
        """Queue again what was claimed by those who no longer renew their leases."""
        left = select(ProblemRow.key, ProblemRow.claim, ProblemRow.time_limit_s)
        left = left.where(ProblemRow.status == "solving", ProblemRow.leased_until_s < EpochSeconds())
        with self._database.read() as connection:
            claims = [Claim(key, str(token), limit_s) for key, token, limit_s in connection.execute(left)]
        for claim in claims:
            with self._database.write() as connection:
                late = ProblemRow.leased_until_s < EpochSeconds()
                again = _give_back(claim).where(late, ProblemRow.attempts < OWNERS)
                if not self._requeue(connection, claim.key, again):
                    failed = _end(claim, "failed").values(error=LEFT_BEHIND.to_bytes())
                    _change(connection, failed.where(late))

    def queued(self) -> list[str]:
        """Return the keys of all queued problems, oldest first."""
        keys = select(ProblemRow.key).where(ProblemRow.status == "queued").order_by(ProblemRow.submitted_at)
        with self._database.read() as connection:
            return list(connection.execute(keys).scalars())

    def put_forgotten(self) -> None:
        """Tell the queue of the problems that are queued here and not there."""
        if self._queue is None:
            return
        with self._database.read() as connection:
            forgotten = self._queue.forgotten(connection)
        for key in forgotten:
            with self._database.write() as connection:
                self._queue.put(connection, key)

    def cancel(self, key: str) -> None:
        """Stop wanting a solve; the best plan so far stays."""
        with self._database.write() as connection:
            _change(connection, _set(key, UNDER_WAY, status="cancelled", finished_at=now(), **_UNCLAIMED))

    def discard(self, plan: int) -> str | None:
        """Throw a damaged plan away; return the key of the problem that is queued again because it was the best."""
        with self._database.write() as connection:
            best_of = select(ProblemRow.key).where(ProblemRow.plan == plan)
            key = connection.execute(best_of).scalar_one_or_none()
            if key is not None:
                self._requeue(connection, key, _queue(key, None).values(plan=None))
            connection.execute(delete(PlanRow).where(PlanRow.id == plan))
            return key

    def job(self, key: str) -> Job | None:
        """Return how far the solve of a problem is."""
        with self._database.read() as connection:
            row = connection.execute(select(*_JOB).where(ProblemRow.key == key)).one_or_none()
        return None if row is None else Job(*row)

    def under_way(self, caller: str | None = None) -> int:
        """Return how many problems wait or are being solved; those of one caller where one is given."""
        rows = select(func.count()).where(ProblemRow.status.in_(UNDER_WAY))
        if caller is not None:
            rows = rows.where(ProblemRow.submitted_by == caller)
        with self._database.read() as connection:
            return connection.execute(rows).scalar_one()

    def page(self, *, status: Status | None, after: tuple[str, str] | None, limit: int) -> list[Summary]:
        """Return problems, the last submitted first, that come after a place in the list: ``submitted_at``, ``key``."""
        rows = select(*_SUMMARY).join(PlanRow, ProblemRow.plan == PlanRow.id, isouter=True)
        rows = rows.order_by(ProblemRow.submitted_at.desc(), ProblemRow.key.desc()).limit(limit)
        if status is not None:
            rows = rows.where(ProblemRow.status == status)
        if after is not None:
            rows = rows.where(tuple_(ProblemRow.submitted_at, ProblemRow.key) < after)
        with self._database.read() as connection:
            return [Summary(**row) for row in connection.execute(rows).mappings()]

    def progress(self, key: str, after: int) -> list[Progress]:
        """Return what was found for a problem after a plan's row, in sequence."""
        rows = select(*_PROGRESS).where(PlanRow.key == key, PlanRow.id > after).order_by(PlanRow.id)
        with self._database.read() as connection:
            return [Progress(*row) for row in connection.execute(rows)]

    def plan_row(self, plan_id: str) -> int | None:
        """Return the first row with a plan id."""
        with self._database.read() as connection:
            rows = select(PlanRow.id).where(PlanRow.plan_id == plan_id).order_by(PlanRow.id).limit(1)
            return connection.execute(rows).scalar_one_or_none()

    def document(self, plan: int) -> bytes | None:
        """Return the stored bytes of a plan; None if they are not those that were stored."""
        with self._database.read() as connection:
            row = connection.execute(select(PlanRow.document, PlanRow.digest).where(PlanRow.id == plan)).one_or_none()
        return row.document if row is not None and _digest(row.document) == row.digest else None

    def _requeue(self, connection: Connection, key: str, statement: Update) -> bool:
        """Make a change that queues a problem; return whether it did."""
        queued = _change(connection, statement) > 0
        if queued:
            self._put(connection, key)
        return queued

    def _put(self, connection: Connection, key: str) -> None:
        if self._queue is not None:
            self._queue.put(connection, key)


def _digest(document: bytes) -> str:
    return hashlib.sha256(document).hexdigest()


def _insert_plan(connection: Connection, plan: Plan) -> int:
    document = plan.to_json().encode()
    row = {
        "plan_id": plan.plan_id,
        "key": plan.key,
        "iteration_ms": plan.metrics.iteration_ms,
        "bound_ms": plan.bound.iteration_ms,
        "digest": _digest(document),
        "document": document,
    }
    return connection.execute(insert(PlanRow).values(row).returning(PlanRow.id)).scalar_one()


def _best(key: str) -> Select[float, float]:
    """Select what the best plan of a problem takes, and its bound."""
    plan_of = select(ProblemRow.plan).where(ProblemRow.key == key).scalar_subquery()
    return select(PlanRow.iteration_ms, PlanRow.bound_ms).where(PlanRow.id == plan_of)


def _improve(connection: Connection, claim: Claim, plan: Plan) -> None:
    held = connection.execute(_held(claim, ProblemRow.key).with_for_update()).one_or_none()
    if held is None:
        return
    best = connection.execute(_best(claim.key)).one_or_none()
    offered = (-plan.metrics.iteration_ms, plan.bound.iteration_ms)
    if best is None or offered > (-best.iteration_ms, best.bound_ms):
        _change(connection, _of(claim).values(plan=_insert_plan(connection, plan)))


def _held(claim: Claim, column: InstrumentedAttribute[T]) -> Select[T]:
    """Select something of a claimed problem, unless the claim is gone."""
    return select(column).where(ProblemRow.key == claim.key, ProblemRow.claim == claim.token)


def _of(claim: Claim) -> Update:
    """Change a claimed problem, unless the claim is gone."""
    return update(ProblemRow).where(ProblemRow.key == claim.key, ProblemRow.claim == claim.token)


def _end(claim: Claim, status: Status) -> Update:
    return _of(claim).values(status=status, finished_at=now(), **_UNCLAIMED)


def _give_back(claim: Claim) -> Update:
    return _of(claim).values(status="queued", **_UNCLAIMED)


def _in(seconds: float) -> ColumnElement[float]:
    return EpochSeconds() + seconds


def _set(key: str, from_: Sequence[Status] | frozenset[Status] | None, **changes: object) -> Update:
    """Change a problem that is in one of the states, or in any when ``from_`` is None."""
    statement = update(ProblemRow).where(ProblemRow.key == key).values(**changes)
    return statement if from_ is None else statement.where(ProblemRow.status.in_(from_))


def _queue(key: str, from_: Sequence[Status] | None) -> Update:
    fresh = {"attempts": 0, "error": None, "started_at": None, "finished_at": None}
    return _set(key, from_, status="queued", **fresh, **_UNCLAIMED)


def _change(connection: Connection, statement: Update) -> int:
    return cast(CursorResult[Any], connection.execute(statement)).rowcount
