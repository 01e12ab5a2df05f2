"""Statements: what transactions of the store and of those who solve have in common."""

from __future__ import annotations

import hashlib
from collections.abc import Collection
from dataclasses import asdict, dataclass
from typing import Any, Self, cast

from sqlalchemy import ColumnElement, Connection, Select, func, insert, select, update
from sqlalchemy.engine import CursorResult
from sqlalchemy.sql import Update

from api.queue import Queue
from api.resource import Status
from api.tables import PlanRow, ProblemRow
from zbplan.plan import Plan
from zbplan.problem import REVISION

UNCLAIMED: dict[str, object] = {"claim": None, "leased_until_s": None}
"""What a problem has that nobody solves."""

FRESH: dict[str, object] = {"attempts": 0, "error": None, "started_at": None, "finished_at": None, **UNCLAIMED}
"""What a problem has whose solve never began."""


@dataclass(frozen=True)
class Found:
    """A plan that was found, as it is stored."""

    plan_id: str
    key: str
    iteration_ms: float
    bound_ms: float
    document: bytes

    @classmethod
    def of(cls, plan: Plan) -> Self:
        """Write a plan down."""
        times = plan.metrics.iteration_ms, plan.bound.iteration_ms
        return cls(plan.plan_id, plan.key, *times, plan.to_json().encode())


def of_this_revision() -> ColumnElement[bool]:
    """Choose the problems whose keys this planner makes; the others are only what new solves may start from."""
    # Rows from before the column was there are of the first revision.
    return func.coalesce(ProblemRow.revision, 1) == REVISION


def set_(key: str, from_: Collection[Status] | None, **changes: object) -> Update:
    """Change a problem that is in one of the states, or in any when ``from_`` is None."""
    statement = update(ProblemRow).where(ProblemRow.key == key).values(**changes)
    return statement if from_ is None else statement.where(ProblemRow.status.in_(from_))


def change(connection: Connection, statement: Update) -> bool:
    """Make a change; return whether there was something to change."""
    return cast(CursorResult[Any], connection.execute(statement)).rowcount > 0


def requeue(connection: Connection, queue: Queue | None, key: str, statement: Update) -> bool:
    """Make a change that queues a problem, and tell the queue; return whether there was something to change."""
    changed = change(connection, statement)
    if changed and queue is not None:
        queue.put(connection, key)
    return changed


def best_of(key: str) -> Select[float, float]:
    """Select what the best plan of a problem takes, and its bound."""
    plan_of = select(ProblemRow.plan).where(ProblemRow.key == key).scalar_subquery()
    return select(PlanRow.iteration_ms, PlanRow.bound_ms).where(PlanRow.id == plan_of)


def insert_plan(connection: Connection, found: Found) -> int:
    """Store a plan; return its row."""
    row = {**asdict(found), "digest": _digest(found.document)}
    return connection.execute(insert(PlanRow).values(row).returning(PlanRow.id)).scalar_one()


def stored_plan(connection: Connection, plan: int) -> bytes | None:
    """Return the stored bytes of a plan; None if they are not those that were stored."""
    row = connection.execute(select(PlanRow.document, PlanRow.digest).where(PlanRow.id == plan)).one_or_none()
    return row.document if row is not None and _digest(row.document) == row.digest else None


def _digest(document: bytes) -> str:
    return hashlib.sha256(document).hexdigest()
