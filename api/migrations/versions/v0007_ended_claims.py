"""Ended claims: PostgreSQL tells who solves that a claim has ended, as when its solve is cancelled elsewhere."""

from __future__ import annotations

from alembic import op

revision = "0007"
down_revision = "0006"


def upgrade() -> None:
    """Add the trigger."""
    if op.get_bind().dialect.name != "postgresql":
        return
    op.execute(
        "CREATE FUNCTION zbplan_ended_claim() RETURNS trigger LANGUAGE plpgsql AS $$ "
        "BEGIN PERFORM pg_notify('zbplan_claims', OLD.claim); RETURN NULL; END $$"
    )
    op.execute(
        "CREATE TRIGGER zbplan_ended_claim AFTER UPDATE OF claim ON problems FOR EACH ROW "
        "WHEN (OLD.claim IS NOT NULL AND NEW.claim IS DISTINCT FROM OLD.claim) EXECUTE FUNCTION zbplan_ended_claim()"
    )
