"""Shapes: what leads from a problem to those that differ from it only in what was measured."""

from __future__ import annotations

import sqlalchemy as sa
from alembic import op

revision = "0004"
down_revision = "0003"


def upgrade() -> None:
    """Add shapes; a problem from before has none and is not found by it."""
    op.add_column("problems", sa.Column("shape", sa.String(), nullable=True))
    op.add_column("problems", sa.Column("measures", sa.LargeBinary(), nullable=True))
    op.add_column("problems", sa.Column("revision", sa.Integer(), nullable=True))
    op.create_index("ix_problems_shape_submitted_at", "problems", ["shape", "submitted_at"])
