"""Sweeps: one problem at many memory limits, numbers of microbatches and placements, and which of its plans pay."""

from __future__ import annotations

import hashlib
import itertools
import json
import logging
from collections.abc import Collection, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Annotated, Any, Literal

from pydantic import Field
from sqlalchemy import delete, insert, select, update
from sqlalchemy.exc import IntegrityError

from api.database import Database
from api.documents import text_of
from api.refusal import ErrorDocument
from api.resource import UNDER_WAY, Status, now
from api.tables import PlanRow, ProblemRow, SweepCellRow, SweepRow
from zbplan.errors import Finding, InvalidInputError
from zbplan.plan import Bound
from zbplan.problem import REVISION, Problem
from zbplan.record import Record

logger = logging.getLogger(__name__)

Limit = float | str | list[float] | None
Shape = str | list[list[int]]


class SweepRequest(Record):
    """A problem, and what to put in its place for each cell; what is left out stays as the problem has it."""

    problem: Problem
    memory_limits: Annotated[list[Limit], Field(min_length=1)] | None = None
    microbatches: Annotated[list[int], Field(min_length=1)] | None = None
    placements: Annotated[list[Shape], Field(min_length=1)] | None = None

    @property
    def axes(self) -> tuple[Sequence[Limit], Sequence[int], Sequence[Shape]]:
        """Return the values of each axis."""
        problem = self.problem
        return (
            [problem.memory_limit] if self.memory_limits is None else self.memory_limits,
            self.microbatches or [problem.microbatches],
            self.placements or [problem.placement],
        )

    def require_at_most(self, cells: int) -> None:
        """Refuse more cells, before there are any; raises ``InvalidInputError``."""
        limits, microbatches, placements = map(len, self.axes)
        found = limits * microbatches * placements
        if found > cells:
            shown = f"{limits} memory limits × {microbatches} microbatches × {placements} placements = {found} cells"
            raise InvalidInputError([Finding("$", shown, f"at most {cells} cells on this service")])

    def cells(self) -> list[dict[str, Any]]:
        """Return what is asked for in each cell, beside what all share."""
        names = ("memory_limit", "microbatches", "placement")
        return [dict(zip(names, values, strict=True)) for values in itertools.product(*self.axes)]


class Cell(Record):
    """What came of one cell.

    Attributes
    ----------
    key
        Of its problem; None before it is posted, and where it is refused.
    status
        ``waiting`` until it is posted, then that of its problem; ``refused`` where there is no plan.
    peak_bytes
        Of the device that holds most.
    pareto
        Whether no cell with as many microbatches takes no longer and holds no more, and less of one of them.
    error
        Why it was refused.
    """

    memory_limit: Limit
    microbatches: int
    placement: Shape
    key: str | None = None
    status: Status | Literal["waiting", "refused"] = "waiting"
    iteration_ms: float | None = None
    bound_ms: float | None = None
    gap: float | None = None
    bubble_rate: float | None = None
    peak_bytes: float | None = None
    pareto: bool = False
    error: ErrorDocument | None = None


class SweepResource(Record):
    """A sweep and how far it is: ``done`` when no better plan may come in any cell."""

    key: str
    status: Literal["solving", "done"]
    submitted_at: str
    cells: list[Cell]


@dataclass(frozen=True)
class Costs:
    """What a plan costs, beside its time."""

    bubble_rate: float
    peak_bytes: float


class Sweeps:
    """Sweeps in a database."""

    def __init__(self, database: Database) -> None:
        self._database = database

    def add(self, request: SweepRequest, caller: str | None) -> str:
        """Keep a sweep, once, or anew where it was damaged; return its key."""
        document = text_of(request)
        key = _key_of(document, REVISION)
        row = {"key": key, "document": document, "submitted_at": now(), "submitted_by": caller}
        self._insert(SweepRow, row)
        mend = update(SweepRow).where(SweepRow.key == key, SweepRow.document != document).values(document=document)
        with self._database.write() as connection:
            connection.execute(mend)
        return key

    def request(self, key: str) -> tuple[SweepRequest, str, str | None] | None:
        """Return a sweep, and when and by whom it was posted; None if it is not there, or damaged."""
        columns = (SweepRow.document, SweepRow.submitted_at, SweepRow.submitted_by)
        with self._database.read() as connection:
            row = connection.execute(select(*columns).where(SweepRow.key == key)).one_or_none()
        if row is None:
            return None
        if key not in (_key_of(row.document, revision) for revision in range(1, REVISION + 1)):
            logger.warning("the sweep %s is damaged; another POST of it mends it", key)
            return None
        return SweepRequest.parse_json(row.document), row.submitted_at, row.submitted_by

    def note(self, sweep: str, cell: int, key: str, refusal: ErrorDocument | None = None) -> str:
        """Note the problem of a cell, or why it is refused; what was noted first stays. Return the key that is noted.

        That of a refused cell is empty.
        """
        content = None if refusal is None else refusal.to_bytes()
        self._insert(SweepCellRow, {"sweep": sweep, "cell": cell, "key": key, "refusal": content})
        noted = select(SweepCellRow.key).where(SweepCellRow.sweep == sweep, SweepCellRow.cell == cell)
        with self._database.read() as connection:
            return connection.execute(noted).scalar_one_or_none() or ""

    def take_up(self, sweep: str, types: Collection[str]) -> None:
        """Forget the cells that were refused for reasons of some types, or stopped, so that they are posted again."""
        cells = select(SweepCellRow.cell, SweepCellRow.refusal, ProblemRow.status)
        cells = cells.join(ProblemRow, SweepCellRow.key == ProblemRow.key, isouter=True)
        with self._database.write() as connection:
            found = connection.execute(cells.where(SweepCellRow.sweep == sweep)).all()
            again = [row.cell for row in found if row.status == "cancelled" or _type_of(row.refusal) in types]
            own = SweepCellRow.sweep == sweep
            connection.execute(delete(SweepCellRow).where(own, SweepCellRow.cell.in_(again)))

    def noted(self, sweep: str) -> set[int]:
        """Return the cells that are posted or refused."""
        with self._database.read() as connection:
            rows = connection.execute(select(SweepCellRow.cell).where(SweepCellRow.sweep == sweep))
            return set(rows.scalars())

    def outcomes(self, sweep: str) -> dict[int, Any]:
        """Return a row for each cell that is posted or refused: its problem's status, what its best plan takes."""
        columns = (SweepCellRow.cell, SweepCellRow.key, SweepCellRow.refusal, ProblemRow.status)
        rows = select(*columns, PlanRow.id.label("plan"), PlanRow.iteration_ms, PlanRow.bound_ms)
        rows = rows.join(ProblemRow, SweepCellRow.key == ProblemRow.key, isouter=True)
        rows = rows.join(PlanRow, ProblemRow.plan == PlanRow.id, isouter=True).where(SweepCellRow.sweep == sweep)
        with self._database.read() as connection:
            return {row.cell: row for row in connection.execute(rows)}

    def unfinished(self) -> list[str]:
        """Return the sweeps that may have cells to post, the first posted first."""
        with self._database.read() as connection:
            keys = list(connection.execute(select(SweepRow.key).order_by(SweepRow.submitted_at)).scalars())
        return [key for key in keys if self._is_unfinished(key)]

    def _is_unfinished(self, key: str) -> bool:
        found = self.request(key)
        return found is not None and len(self.noted(key)) < len(found[0].cells())

    def _insert(self, table: type[SweepRow | SweepCellRow], row: Mapping[str, object]) -> None:
        try:
            with self._database.write() as connection:
                connection.execute(insert(table).values(row))
        except IntegrityError:
            return  # it is there already


def _key_of(document: bytes, revision: int) -> str:
    return hashlib.sha256(document + f" revision {revision}".encode()).hexdigest()


def _type_of(refusal: bytes | None) -> str | None:
    return None if refusal is None else ErrorDocument.parse(json.loads(refusal)).type


def cell_of(asked: dict[str, Any], outcome: Any | None, costs: Costs | None) -> Cell:
    """Return what came of a cell, before it is held against the others."""
    if outcome is None:
        return Cell(**asked)
    if outcome.refusal is not None:
        return Cell(**asked, status="refused", error=ErrorDocument.parse(json.loads(outcome.refusal)))
    found = Cell(**asked, key=outcome.key, status=outcome.status)
    if costs is None:
        return found
    gap = Bound.of(outcome.bound_ms, outcome.iteration_ms, "").gap
    times = {"iteration_ms": outcome.iteration_ms, "bound_ms": outcome.bound_ms, "gap": gap}
    return found.model_copy(update={**times, "bubble_rate": costs.bubble_rate, "peak_bytes": costs.peak_bytes})


def table(key: str, submitted_at: str, cells: Sequence[Cell]) -> SweepResource:
    """Hold the cells against each other."""
    under_way = any(cell.status in (*UNDER_WAY, "waiting") for cell in cells)
    best = set(_undominated(cells))
    marked = [cell.model_copy(update={"pareto": at in best}) for at, cell in enumerate(cells)]
    return SweepResource(key=key, status="solving" if under_way else "done", submitted_at=submitted_at, cells=marked)


def _undominated(cells: Sequence[Cell]) -> Iterator[int]:
    # In the order of time and then memory, a cell pays if it holds less than every one before it.
    order = sorted(
        (cell.microbatches, cell.iteration_ms, cell.peak_bytes, at)
        for at, cell in enumerate(cells)
        if cell.iteration_ms is not None and cell.peak_bytes is not None
    )
    for _, group in itertools.groupby(order, key=lambda entry: entry[0]):
        least: tuple[float, float] | None = None
        for _, iteration_ms, peak_bytes, at in group:
            if least is None or peak_bytes < least[1] or (iteration_ms, peak_bytes) == least:
                least = (iteration_ms, peak_bytes)
                yield at
