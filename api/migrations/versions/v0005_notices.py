"""Notices: PostgreSQL tells who listens which problem has changed for its readers."""

from __future__ import annotations

from alembic import op

revision = "0005"
down_revision = "0004"


def upgrade() -> None:
    """Add the trigger; leases, which are renewed all the time, do not set it off."""
    if op.get_bind().dialect.name != "postgresql":
        return
    op.execute(
        "CREATE FUNCTION zbplan_notice() RETURNS trigger LANGUAGE plpgsql AS $$ "
        "BEGIN PERFORM pg_notify('zbplan_problems', NEW.key); RETURN NULL; END $$"
    )
    op.execute(
        "CREATE TRIGGER zbplan_notice AFTER INSERT OR UPDATE OF status, plan ON problems "
        "FOR EACH ROW EXECUTE FUNCTION zbplan_notice()"
    )
