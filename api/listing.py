"""Listing: problems as lists show them, and which to show."""

from __future__ import annotations

import json
import re
from datetime import UTC
from typing import Annotated, Literal

from pydantic import AfterValidator, AwareDatetime, BaseModel, ConfigDict, Field
from sqlalchemy import Select, select, tuple_

from api.database import Database
from api.resource import Status, rfc3339
from api.statements import of_this_revision
from api.tables import PlanRow, ProblemRow
from zbplan.problem import METHODS, Optimizer, Problem
from zbplan.record import Record

PlacementName = Literal["linear", "interleaved", "v", "auto", "custom"]
"""How a problem names its placement; ``custom`` where it lists the stages of each device."""

_CURSOR = re.compile(r"\d{4}-\d\d-\d\dT\d\d:\d\d:\d\d\.\d{6}Z_[0-9a-f]{64}", re.ASCII)
"""When a problem was submitted, and its key."""


class Summary(Record):
    """A problem in a list: what was asked for, how far its solve is, and what its best plan takes.

    An older service beside this one may have stored it without what was asked for.

    Attributes
    ----------
    profile
        Name of the profile that it was first posted with.
    """

    key: str
    status: Status
    submitted_at: str
    started_at: str | None
    finished_at: str | None
    profile: str | None
    devices: int | None
    placement: PlacementName | None
    optimizer: Optimizer | None
    method: str | None
    plan_id: str | None
    iteration_ms: float | None
    bound_ms: float | None


class Page(Record):
    """Part of the list of problems, the last submitted first; ``next`` is the cursor of the part that follows."""

    plans: list[Summary]
    next: str | None


def _known(method: str) -> str:
    if method not in METHODS:
        raise ValueError(f"one of {', '.join(METHODS)}")
    return method


def _of_a_page(cursor: str) -> str:
    if not _CURSOR.fullmatch(cursor):
        raise ValueError("the `next` of another part of the list")
    return cursor


def _in_utc(time: AwareDatetime) -> AwareDatetime:
    try:
        return time.astimezone(UTC)
    except OverflowError:
        raise ValueError("a time between the years 1 and 9999") from None


Method = Annotated[str, AfterValidator(_known), Field(json_schema_extra={"enum": list(METHODS)})]
Time = Annotated[AwareDatetime, AfterValidator(_in_utc), Field(examples=["2026-01-31T12:00:00Z"])]


class Wanted(BaseModel):
    """Which problems to list: those to which all that is said applies, from a place in the list on."""

    model_config = ConfigDict(frozen=True, extra="forbid")

    status: Annotated[Status | None, Field(description="Only those in this state.", examples=["done"])] = None
    method: Annotated[Method | None, Field(description="Only those of this method.", examples=["auto"])] = None
    optimizer: Annotated[
        Optimizer | None, Field(description="Only those with this objective.", examples=["synchronous"])
    ] = None
    placement: Annotated[
        PlacementName | None,
        Field(description="Only those that name this placement, or list one.", examples=["linear"]),
    ] = None
    devices: Annotated[
        int | None, Field(ge=1, le=4096, description="Only those with so many devices.", examples=[8])
    ] = None
    profile: Annotated[
        str | None, Field(description="Only those first posted with a profile of this name.", examples=["gpt-1.5b"])
    ] = None
    since: Annotated[Time | None, Field(description="Only those submitted then or later.")] = None
    until: Annotated[Time | None, Field(description="Only those submitted before.")] = None
    cursor: Annotated[
        Annotated[str, AfterValidator(_of_a_page)] | None, Field(description="`next` of the part before.")
    ] = None
    limit: Annotated[int, Field(ge=1, le=1000, description="How many at most.", examples=[20])] = 100


def facts_of(problem: Problem) -> dict[str, object]:
    """Return what lists show of a problem, as it is stored."""
    return {
        "method": problem.method,
        "optimizer": problem.optimizer,
        "placement": problem.placement if isinstance(problem.placement, str) else "custom",
        "devices": problem.devices,
        "profile": json.dumps(problem.profile.name),  # which may hold what a database cannot
    }


class Listing:
    """Lists the problems in a database."""

    def __init__(self, database: Database) -> None:
        self._database = database

    def page(self, wanted: Wanted) -> Page:
        """Return the problems that are wanted, the last submitted first."""
        with self._database.read() as connection:
            rows = connection.execute(_chosen(wanted)).mappings().all()
        plans = [Summary(**{**row, "profile": json.loads(row["profile"] or "null")}) for row in rows]
        last = plans[-1] if len(plans) == wanted.limit else None
        return Page(plans=plans, next=None if last is None else f"{last.submitted_at}_{last.key}")


def _chosen(wanted: Wanted) -> Select[tuple[object, ...]]:
    of_plans = ("plan_id", "iteration_ms", "bound_ms")
    columns = [getattr(PlanRow if name in of_plans else ProblemRow, name) for name in Summary.model_fields]
    rows: Select[tuple[object, ...]] = select(*columns).join(PlanRow, ProblemRow.plan == PlanRow.id, isouter=True)
    place = (ProblemRow.submitted_at, ProblemRow.key)
    rows = rows.where(of_this_revision()).order_by(*(column.desc() for column in place)).limit(wanted.limit)
    for name in ("status", "method", "optimizer", "placement", "devices"):
        if (value := getattr(wanted, name)) is not None:
            rows = rows.where(getattr(ProblemRow, name) == value)
    if wanted.profile is not None:
        rows = rows.where(ProblemRow.profile == json.dumps(wanted.profile))
    if wanted.since is not None:
        rows = rows.where(ProblemRow.submitted_at >= rfc3339(wanted.since))
    if wanted.until is not None:
        rows = rows.where(ProblemRow.submitted_at < rfc3339(wanted.until))
    if wanted.cursor is not None:
        submitted_at, _, key = wanted.cursor.partition("_")
        rows = rows.where(tuple_(*place) < (submitted_at, key))
    return rows
