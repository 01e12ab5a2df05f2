"""Store: problems and their plans, as every process of the service sees them.

Each method is one transaction. What may change a job says so in its ``WHERE``, so that of two processes one wins.
"""

from __future__ import annotations

import hashlib
from collections.abc import Sequence
from datetime import UTC, datetime, timedelta
from typing import Any, cast

from sqlalchemy import Connection, Select, delete, insert, select, tuple_, update
from sqlalchemy.engine import CursorResult
from sqlalchemy.exc import IntegrityError
from sqlalchemy.sql import Update

from api.database import Database
from api.documents import text_of
from api.refusal import ErrorDocument
from api.resource import UNDER_WAY, Job, Progress, Status, Summary, now
from api.tables import PlanRow, ProblemRow
from zbplan.plan import Bound, Plan
from zbplan.problem import Problem

ATTEMPTS = 2
"""How often a solve is begun before its crashes count as failure."""

_JOB = tuple(getattr(ProblemRow, name) for name in Job.__dataclass_fields__)
_PROGRESS = tuple(getattr(PlanRow, name) for name in Progress.__dataclass_fields__)
_SUMMARY = (
    *(getattr(ProblemRow, name) for name in ("key", "status", "submitted_at", "started_at", "finished_at")),
    *(getattr(PlanRow, name) for name in ("plan_id", "iteration_ms", "bound_ms")),
)


class Store:
    """Problems, how far their solves are, and plans.

    Parameters
    ----------
    database
        Where they are.
    """

    def __init__(self, database: Database) -> None:
        self._database = database

    def add(self, problem: Problem, plan: Plan) -> None:
        """Store a new problem with its first plan, ready to be solved; if it is there already, leave it."""
        row = {
            "key": problem.key,
            "problem": text_of(problem),
            "status": "queued",
            "submitted_at": now(),
            "time_limit_s": problem.time_limit_s,
            "attempts": 0,
        }
        try:
            with self._database.write() as connection:
                first = _insert_plan(connection, plan)
                connection.execute(insert(ProblemRow).values({**row, "plan": first}))
        except IntegrityError:
            if self.job(problem.key) is None:
                raise

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
                _change(connection, again)
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

    def start(self, key: str) -> Problem | None:
        """Claim a queued problem for solving; None when it is not, or no longer, queued."""
        with self._database.write() as connection:
            claim = _set(key, ["queued"], status="solving", started_at=now())
            if not _change(connection, claim.values(attempts=ProblemRow.attempts + 1)):
                return None
            text = connection.execute(select(ProblemRow.problem).where(ProblemRow.key == key)).scalar_one()
        return Problem.parse_json(text)

    def improve(self, key: str, plan: Plan) -> None:
        """Keep a plan, which must be legal, if it is better than the one there or as good with a better bound."""
        with self._database.write() as connection:
            self._improve(connection, key, plan)

    def finish(self, key: str, plan: Plan) -> None:
        """Keep the last plan of a solve, if it is the best, and say that the solve is done."""
        with self._database.write() as connection:
            self._improve(connection, key, plan)
            _change(connection, _set(key, ["solving"], status="done", finished_at=now()))

    def _improve(self, connection: Connection, key: str, plan: Plan) -> None:
        best = connection.execute(_best(key)).one_or_none()
        offered = (-plan.metrics.iteration_ms, plan.bound.iteration_ms)
        if best is None or offered > (-best.iteration_ms, best.bound_ms):
            _change(connection, _set(key, ["solving"], plan=_insert_plan(connection, plan)))

    def overrun(self, key: str) -> None:
        """Say that a solve was killed past its time: done if there is a plan, which is then the best so far."""
        with self._database.write() as connection:
            _change(connection, _set(key, ["solving"], status="done", finished_at=now()))

    def fail(self, key: str, error: ErrorDocument) -> None:
        """Say that a solve failed; the best plan so far stays."""
        with self._database.write() as connection:
            _change(connection, _fail(key, error))

    def lost(self, key: str, error: ErrorDocument) -> None:
        """Say that the worker of a solve is gone: queued again, or failed when that was the last attempt."""
        with self._database.write() as connection:
            again = _set(key, ["solving"], status="queued").where(ProblemRow.attempts < ATTEMPTS)
            if not _change(connection, again):
                _change(connection, _fail(key, error))

    def cancel(self, key: str) -> None:
        """Stop wanting a solve; the best plan so far stays."""
        with self._database.write() as connection:
            _change(connection, _set(key, UNDER_WAY, status="cancelled", finished_at=now()))

    def discard(self, plan: int) -> str | None:
        """Throw a damaged plan away; return the key of the problem that is queued again because it was the best."""
        with self._database.write() as connection:
            best_of = select(ProblemRow.key).where(ProblemRow.plan == plan)
            key = connection.execute(best_of).scalar_one_or_none()
            if key is not None:
                _change(connection, _queue(key, None).values(plan=None))
            connection.execute(delete(PlanRow).where(PlanRow.id == plan))
            return key

    def recover(self) -> list[str]:
        """Queue what a service that is gone was solving; return the keys of all queued problems, oldest first."""
        with self._database.write() as connection:
            _change(connection, _set(None, ["solving"], status="queued", attempts=0))
        queued = select(ProblemRow.key).where(ProblemRow.status == "queued").order_by(ProblemRow.submitted_at)
        with self._database.read() as connection:
            return list(connection.execute(queued).scalars())

    def job(self, key: str) -> Job | None:
        """Return how far the solve of a problem is."""
        with self._database.read() as connection:
            row = connection.execute(select(*_JOB).where(ProblemRow.key == key)).one_or_none()
        return None if row is None else Job(*row)

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


def _set(key: str | None, from_: Sequence[Status] | frozenset[Status] | None, **changes: object) -> Update:
    """Change a job, or all when ``key`` is None, that is in one of the states, or any when ``from_`` is None."""
    statement = update(ProblemRow).values(**changes)
    if key is not None:
        statement = statement.where(ProblemRow.key == key)
    return statement if from_ is None else statement.where(ProblemRow.status.in_(from_))


def _queue(key: str, from_: Sequence[Status] | None) -> Update:
    return _set(key, from_, status="queued", attempts=0, error=None, started_at=None, finished_at=None)


def _fail(key: str, error: ErrorDocument) -> Update:
    return _set(key, ["solving"], status="failed", error=error.to_bytes(), finished_at=now())


def _change(connection: Connection, statement: Update) -> int:
    return cast(CursorResult[Any], connection.execute(statement)).rowcount
