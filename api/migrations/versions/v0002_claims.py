"""Claims: who solves a problem, and until when that counts."""

from __future__ import annotations

import sqlalchemy as sa
from alembic import op

revision = "0002"
down_revision = "0001"


def upgrade() -> None:
    """Add claims; what was being solved without one is queued."""
    op.add_column("problems", sa.Column("claim", sa.String(), nullable=True))
    op.add_column("problems", sa.Column("leased_until_s", sa.Double(), nullable=True))
    op.execute("UPDATE problems SET status = 'queued', attempts = 0 WHERE status = 'solving'")
