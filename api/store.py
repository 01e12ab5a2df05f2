"""Store: problems and their plans, as every process of the service sees them.

Each method is one transaction. What may change a job says so in its ``WHERE``, so that of two processes one wins.
"""

from __future__ import annotations

from datetime import UTC, datetime, timedelta
from typing import Literal

import numpy as np
from sqlalchemy import delete, func, insert, select
from sqlalchemy.exc import IntegrityError

from api.database import Database
from api.documents import text_of
from api.listing import facts_of
from api.near import distance, measures_of, shape_of
from api.queue import Queue
from api.resource import UNDER_WAY, Job, Progress, now
from api.schema import upgrade
from api.statements import (
    FRESH,
    UNCLAIMED,
    Found,
    best_of,
    change,
    insert_plan,
    of_this_revision,
    requeue,
    set_,
    stored_plan,
)
from api.tables import PlanRow, ProblemRow
from zbplan.plan import Bound, Plan
from zbplan.problem import REVISION, Problem

LOOKED_AT = 100
"""Of how many problems of a shape, the last submitted ones, the nearest are sought."""

_JOB = tuple(getattr(ProblemRow, name) for name in Job.__dataclass_fields__)
_PROGRESS = tuple(getattr(PlanRow, name) for name in Progress.__dataclass_fields__)


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
        unready = True
        while unready:
            with self._database.migrating() as connection:
                upgrade(connection)
                unready = self._queue is not None and self._queue.prepare(connection)

    def add(self, problem: Problem, plan: Plan, caller: str | None = None) -> None:
        """Store a new problem with its first plan, ready to be solved; if it is there already, leave it."""
        first = Found.of(plan)
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
            **facts_of(problem),
        }
        try:
            with self._database.write() as connection:
                connection.execute(insert(ProblemRow).values({**row, "plan": insert_plan(connection, first)}))
                if self._queue is not None:
                    self._queue.put(connection, problem.key)
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

    def is_worth_another_solve(self, job: Job, time_limit_s: float, retry_after_s: float) -> bool:
        """Return whether it may help to solve a known problem again, with so much time.

        It may where the solve was cancelled, where it failed a while ago, and where there is more time than the solve
        has or had and the plan is not proven optimal.
        """
        if job.status == "failed":
            since = datetime.now(UTC) - datetime.fromisoformat(job.finished_at or job.submitted_at)
            return since >= timedelta(seconds=retry_after_s)
        if job.status == "done":
            return time_limit_s > job.time_limit_s and not self._is_optimal(job.key)
        return job.status == "cancelled" or (job.status in UNDER_WAY and time_limit_s > job.time_limit_s)

    def reopen(self, job: Job, problem: Problem, caller: str | None = None) -> None:
        """Queue a known problem again, unless its job has changed: it is solved on from the best plan so far.

        A solve under way loses its claim and begins again; it stays that of who posted it.
        """
        changes = {"problem": text_of(problem), "time_limit_s": problem.time_limit_s, **FRESH}
        if job.status not in UNDER_WAY:
            changes["submitted_by"] = caller
        with self._database.write() as connection:
            requeue(connection, self._queue, job.key, set_(job.key, [job.status], status="queued", **changes))

    def _is_optimal(self, key: str) -> bool:
        with self._database.read() as connection:
            best = connection.execute(best_of(key)).one_or_none()
        return best is not None and Bound.of(best.bound_ms, best.iteration_ms, "").proven_optimal

    def queued(self) -> list[str]:
        """Return the keys of all queued problems, oldest first."""
        keys = select(ProblemRow.key).where(ProblemRow.status == "queued", of_this_revision())
        with self._database.read() as connection:
            return list(connection.execute(keys.order_by(ProblemRow.submitted_at)).scalars())

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
            change(connection, set_(key, UNDER_WAY, status="cancelled", finished_at=now(), **UNCLAIMED))

    def discard(self, plan: int) -> str | None:
        """Throw a damaged plan away; return the key of the problem that is queued again because it was the best."""
        with self._database.write() as connection:
            best_of = select(ProblemRow.key).where(ProblemRow.plan == plan)
            key = connection.execute(best_of).scalar_one_or_none()
            # A better plan may have come since: it stays.
            again = set_(key or "", None, status="queued", plan=None, **FRESH).where(ProblemRow.plan == plan)
            queued = key is not None and requeue(connection, self._queue, key, again)
            connection.execute(delete(PlanRow).where(PlanRow.id == plan))
            return key if queued else None

    def job(self, key: str) -> Job | None:
        """Return how far the solve of a problem is; None if there is none of this revision."""
        with self._database.read() as connection:
            row = connection.execute(select(*_JOB).where(ProblemRow.key == key, of_this_revision())).one_or_none()
        return None if row is None else Job(*row)

    def under_way(self, caller: str | None = None) -> int:
        """Return how many problems wait or are being solved; those of one caller where one is given."""
        rows = select(func.count()).where(ProblemRow.status.in_(UNDER_WAY), of_this_revision())
        if caller is not None:
            rows = rows.where(ProblemRow.submitted_by == caller)
        with self._database.read() as connection:
            return connection.execute(rows).scalar_one()

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
            return stored_plan(connection, plan)
