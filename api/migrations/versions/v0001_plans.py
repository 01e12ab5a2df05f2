"""Problems, plans and profiles."""

from __future__ import annotations

import sqlalchemy as sa
from alembic import op

revision = "0001"
down_revision = None


def upgrade() -> None:
    """Make the tables that the first services had."""
    op.create_table(
        "plans",
        sa.Column("id", sa.Integer(), nullable=False),
        sa.Column("plan_id", sa.String(), nullable=False),
        sa.Column("key", sa.String(), nullable=False),
        sa.Column("iteration_ms", sa.Double(), nullable=False),
        sa.Column("bound_ms", sa.Double(), nullable=False),
        sa.Column("digest", sa.String(), nullable=False),
        sa.Column("document", sa.LargeBinary(), nullable=False),
        sa.PrimaryKeyConstraint("id"),
        sqlite_autoincrement=True,
    )
    op.create_index("ix_plans_plan_id", "plans", ["plan_id"])
    op.create_table(
        "problems",
        sa.Column("key", sa.String(), nullable=False),
        sa.Column("problem", sa.LargeBinary(), nullable=False),
        sa.Column("status", sa.String(), nullable=False),
        sa.Column("submitted_at", sa.String(), nullable=False),
        sa.Column("started_at", sa.String(), nullable=True),
        sa.Column("finished_at", sa.String(), nullable=True),
        sa.Column("time_limit_s", sa.Double(), nullable=False),
        sa.Column("attempts", sa.Integer(), nullable=False),
        sa.Column("error", sa.LargeBinary(), nullable=True),
        sa.Column("plan", sa.Integer(), nullable=True),
        sa.ForeignKeyConstraint(["plan"], ["plans.id"]),
        sa.PrimaryKeyConstraint("key"),
    )
    op.create_index("ix_problems_status_submitted_at", "problems", ["status", "submitted_at"])
    op.create_table(
        "profiles",
        sa.Column("digest", sa.String(), nullable=False),
        sa.Column("name", sa.String(), nullable=False),
        sa.Column("posted_at", sa.String(), nullable=False),
        sa.Column("document", sa.LargeBinary(), nullable=False),
        sa.PrimaryKeyConstraint("digest"),
    )
    op.create_index("ix_profiles_name_posted_at", "profiles", ["name", "posted_at"])
