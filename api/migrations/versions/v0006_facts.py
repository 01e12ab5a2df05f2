"""Facts: what lists show of problems, and choose them by."""

from __future__ import annotations

import json
from contextlib import suppress

import sqlalchemy as sa
from alembic import op

revision = "0006"
down_revision = "0005"


def upgrade() -> None:
    """Add the facts, read from what was posted."""
    for column in ("method", "optimizer", "placement", "profile"):
        op.add_column("problems", sa.Column(column, sa.String(), nullable=True))
    op.add_column("problems", sa.Column("devices", sa.Integer(), nullable=True))
    op.create_index("ix_problems_submitted_at_key", "problems", ["submitted_at", "key"])
    fill = sa.text(
        "UPDATE problems SET method = :method, optimizer = :optimizer, placement = :placement, profile = :profile, "
        "devices = :devices WHERE key = :key"
    )
    connection = op.get_bind()
    for key in connection.execute(sa.text("SELECT key FROM problems")).scalars().all():
        text = connection.execute(sa.text("SELECT problem FROM problems WHERE key = :key"), {"key": key}).scalar_one()
        with suppress(ValueError, AttributeError):  # a damaged problem is in lists without what was asked for
            connection.execute(fill, {"key": key, **_facts(json.loads(text))})


def _facts(problem: dict[str, object]) -> dict[str, object]:
    profile, placement = problem.get("profile"), problem.get("placement", "auto")
    return {
        "method": problem.get("method", "auto"),
        "optimizer": problem.get("optimizer", "synchronous"),
        "placement": placement if isinstance(placement, str) else "custom",
        "devices": problem.get("devices"),
        "profile": json.dumps(profile.get("name", "") if isinstance(profile, dict) else ""),
    }
