"""Tables: problems and the plans found for them, what was measured and swept, and who may ask."""

from __future__ import annotations

from typing import Any, ClassVar

from sqlalchemy import Double, ForeignKey, Index, LargeBinary
from sqlalchemy.orm import DeclarativeBase, Mapped, mapped_column


class Base(DeclarativeBase):
    """The schema; what changes here needs a migration."""

    type_annotation_map: ClassVar[dict[Any, Any]] = {float: Double}


class PlanRow(Base):
    """A plan as it is served: the exact bytes, never changed.

    ``digest`` is their SHA-256. A ``plan_id`` may stand here twice, with different bounds.
    """

    __tablename__ = "plans"

    id: Mapped[int] = mapped_column(primary_key=True)
    plan_id: Mapped[str] = mapped_column(index=True)
    key: Mapped[str]
    iteration_ms: Mapped[float]
    bound_ms: Mapped[float]
    digest: Mapped[str]
    document: Mapped[bytes] = mapped_column(LargeBinary)

    __table_args__ = ({"sqlite_autoincrement": True},)  # the id of a row that was thrown away is not given again


class ProblemRow(Base):
    """A problem, how far its solve is, and its best plan so far.

    While it is being solved, ``claim`` names who does, and counts until ``leased_until_s`` by the database's clock.
    Problems of one ``shape`` differ only in their ``measures`` (``api.near``) and in the planner's ``revision``.
    Lists choose by what stands after that (``api.listing``).
    """

    __tablename__ = "problems"

    key: Mapped[str] = mapped_column(primary_key=True)
    problem: Mapped[bytes] = mapped_column(LargeBinary)
    status: Mapped[str]
    submitted_at: Mapped[str]
    submitted_by: Mapped[str | None]
    started_at: Mapped[str | None]
    finished_at: Mapped[str | None]
    time_limit_s: Mapped[float]
    attempts: Mapped[int]
    claim: Mapped[str | None]
    leased_until_s: Mapped[float | None]
    error: Mapped[bytes | None] = mapped_column(LargeBinary)
    plan: Mapped[int | None] = mapped_column(ForeignKey("plans.id"))
    shape: Mapped[str | None]
    measures: Mapped[bytes | None] = mapped_column(LargeBinary)
    revision: Mapped[int | None]
    method: Mapped[str | None]
    optimizer: Mapped[str | None]
    placement: Mapped[str | None]
    devices: Mapped[int | None]
    profile: Mapped[str | None]

    __table_args__ = (
        Index("ix_problems_status_submitted_at", "status", "submitted_at"),
        Index("ix_problems_shape_submitted_at", "shape", "submitted_at"),
        Index("ix_problems_submitted_at_key", "submitted_at", "key"),
    )


class ProfileRow(Base):
    """A profile as it was posted; the one posted last is what its name stands for."""

    __tablename__ = "profiles"

    digest: Mapped[str] = mapped_column(primary_key=True)
    name: Mapped[str]
    posted_at: Mapped[str]
    document: Mapped[bytes] = mapped_column(LargeBinary)

    __table_args__ = (Index("ix_profiles_name_posted_at", "name", "posted_at"),)


class TokenRow(Base):
    """Who may ask; ``digest`` is the SHA-256 of the token."""

    __tablename__ = "tokens"

    name: Mapped[str] = mapped_column(primary_key=True)
    role: Mapped[str]
    digest: Mapped[str]
    added_at: Mapped[str]


class SweepRow(Base):
    """A sweep as it was posted."""

    __tablename__ = "sweeps"

    key: Mapped[str] = mapped_column(primary_key=True)
    submitted_at: Mapped[str]
    submitted_by: Mapped[str | None]
    document: Mapped[bytes] = mapped_column(LargeBinary)


class SweepCellRow(Base):
    """A cell of a sweep that was posted as a problem, or refused as one."""

    __tablename__ = "sweep_cells"

    sweep: Mapped[str] = mapped_column(ForeignKey("sweeps.key"), primary_key=True)
    cell: Mapped[int] = mapped_column(primary_key=True)
    key: Mapped[str]
    refusal: Mapped[bytes | None] = mapped_column(LargeBinary)
