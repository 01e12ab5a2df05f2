"""Tally: how many problems are how far, and what became of solves, whoever solved them."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from datetime import UTC, datetime, timedelta
from threading import Lock
from typing import get_args

from sqlalchemy import func, select

from api.database import Database
from api.resource import Status, rfc3339
from api.statements import of_this_revision
from api.tables import PlanRow, ProblemRow
from zbplan.plan import Bound

LATE_S = 60.0
"""How much later than it says the end of a solve may be seen: clocks differ and transactions take time."""


@dataclass(frozen=True)
class Finished:
    """A solve that ended, how long it took, and the gap of its best plan."""

    status: Status
    seconds: float
    gap: float | None


class Tally:
    """Reads the store for those who watch; tells of each solve once.

    Parameters
    ----------
    database
        Where problems are. Only solves that end after now count.
    """

    def __init__(self, database: Database) -> None:
        self._database = database
        self._began = self._asked = datetime.now(UTC)
        self._seen: set[tuple[str, str]] = set()
        self._one_at_a_time = Lock()

    def counts(self) -> dict[Status, int]:
        """Return how many problems that can be asked for are in each state: those of this planner revision."""
        rows = select(ProblemRow.status, func.count()).where(of_this_revision()).group_by(ProblemRow.status)
        with self._database.read() as connection:
            found = {row[0]: row[1] for row in connection.execute(rows)}
        return {status: found.get(status, 0) for status in get_args(Status)}

    def finished(self) -> list[Finished]:
        """Return the solves that ended since this was asked before."""
        with self._one_at_a_time:
            since = max(self._began, self._asked - timedelta(seconds=LATE_S))
            self._asked = datetime.now(UTC)
            return list(self._new(rfc3339(since)))

    def _new(self, since: str) -> Iterator[Finished]:
        columns = (ProblemRow.key, ProblemRow.status, ProblemRow.started_at, ProblemRow.finished_at)
        rows = select(*columns, PlanRow.iteration_ms, PlanRow.bound_ms)
        rows = rows.join(PlanRow, ProblemRow.plan == PlanRow.id, isouter=True).where(ProblemRow.finished_at > since)
        with self._database.read() as connection:
            found = connection.execute(rows.order_by(ProblemRow.finished_at)).all()
        before, self._seen = self._seen, {(row.key, row.finished_at) for row in found}
        for row in found:
            if (row.key, row.finished_at) not in before and row.started_at is not None:
                seconds = datetime.fromisoformat(row.finished_at) - datetime.fromisoformat(row.started_at)
                gap = None if row.bound_ms is None else Bound.of(row.bound_ms, row.iteration_ms, "").gap
                yield Finished(row.status, seconds.total_seconds(), gap)
