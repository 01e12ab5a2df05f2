"""Libpq: how the store's PostgreSQL is reached, through SQLAlchemy and past it."""

from __future__ import annotations

from typing import Any

from sqlalchemy.engine import make_url

PATIENCE = {
    "connect_timeout": 5,
    "tcp_user_timeout": 10_000,
    "keepalives_idle": 5,
    "keepalives_interval": 2,
    "keepalives_count": 3,
}
"""Of libpq: how many seconds a connection to PostgreSQL may take, how many milliseconds what is sent may stay without
an answer of its machine, and when a silent machine is probed: a service must not wait long for one that is away."""


def patience(database_url: str) -> dict[str, int]:
    """Return how long to try to connect or talk to a PostgreSQL that may be away, where the URL does not say so."""
    parsed = make_url(database_url)
    if parsed.get_backend_name() != "postgresql":
        return {}
    return {name: most for name, most in PATIENCE.items() if name not in parsed.query}


def conninfo(database_url: str) -> str:
    """Return what psycopg connects to the store with."""
    from psycopg.conninfo import make_conninfo  # a service on SQLite does without psycopg

    url = make_url(database_url)
    _, options = url.get_dialect()().create_connect_args(url)
    parts: dict[str, Any] = {**patience(database_url), **options}
    return make_conninfo(**parts)
