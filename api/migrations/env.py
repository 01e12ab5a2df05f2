"""What Alembic runs: the steps that are missing, on the connection and in the transaction of who asks."""

from __future__ import annotations

from alembic import context

from api.tables import Base

context.configure(connection=context.config.attributes["connection"], target_metadata=Base.metadata)
with context.begin_transaction():
    context.run_migrations()
