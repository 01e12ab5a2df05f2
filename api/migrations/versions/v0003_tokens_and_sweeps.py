"""Tokens, sweeps, and whose a problem is."""

from __future__ import annotations

import sqlalchemy as sa
from alembic import op

revision = "0003"
down_revision = "0002"


def upgrade() -> None:
    """Make the tables, and note with problems who posted them."""
    op.add_column("problems", sa.Column("submitted_by", sa.String(), nullable=True))
    op.create_table(
        "tokens",
        sa.Column("name", sa.String(), nullable=False),
        sa.Column("role", sa.String(), nullable=False),
        sa.Column("digest", sa.String(), nullable=False),
        sa.Column("added_at", sa.String(), nullable=False),
        sa.PrimaryKeyConstraint("name"),
    )
    op.create_table(
        "sweeps",
        sa.Column("key", sa.String(), nullable=False),
        sa.Column("submitted_at", sa.String(), nullable=False),
        sa.Column("submitted_by", sa.String(), nullable=True),
        sa.Column("document", sa.LargeBinary(), nullable=False),
        sa.PrimaryKeyConstraint("key"),
    )
    op.create_table(
        "sweep_cells",
        sa.Column("sweep", sa.String(), nullable=False),
        sa.Column("cell", sa.Integer(), nullable=False),
        sa.Column("key", sa.String(), nullable=False),
        sa.Column("refusal", sa.LargeBinary(), nullable=True),
        sa.ForeignKeyConstraint(["sweep"], ["sweeps.key"]),
        sa.PrimaryKeyConstraint("sweep", "cell"),
    )
