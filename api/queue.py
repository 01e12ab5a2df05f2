"""Queue: how those who solve elsewhere learn of problems."""

from __future__ import annotations

from typing import Protocol

from sqlalchemy import Connection

from api.settings import Settings


class Queue(Protocol):
    """Where the store puts the key of each problem that it queues, in the transaction that queues it."""

    def prepare(self, connection: Connection) -> bool:
        """Take what the queue itself stores a step further, under the lock of the migrations; return whether it did."""

    def put(self, connection: Connection, key: str) -> None:
        """Queue a problem, unless it waits already."""

    def forgotten(self, connection: Connection) -> list[str]:
        """Return the keys of queued problems that nobody would get from here."""


def queue_of(settings: Settings) -> Queue | None:
    """Return the queue of a service whose problems are solved elsewhere; None where it solves them itself."""
    if settings.solving == "local":
        return None
    from api.worker_queue import WorkerQueue

    return WorkerQueue()
