"""The one resource: the best plan so far for the problem with a key, and its exact bytes."""

from __future__ import annotations

import hashlib
import json
from collections.abc import Mapping
from dataclasses import dataclass
from datetime import UTC, datetime
from typing import Literal

from api.coding import compressed
from api.refusal import ErrorDocument
from zbplan.plan import Plan
from zbplan.record import Record

Status = Literal["queued", "solving", "done", "failed", "cancelled"]

UNDER_WAY: frozenset[Status] = frozenset({"queued", "solving"})
"""States in which a better plan may still come."""


class PlanResource(Record):
    """The best plan so far for the problem with this key.

    Attributes
    ----------
    submitted_at, started_at, finished_at
        UTC, RFC 3339.
    plan
        The best plan so far; while ``queued`` or ``solving`` a better one may come.
    error
        Why the solve failed.
    """

    key: str
    status: Status
    submitted_at: str
    started_at: str | None
    finished_at: str | None
    plan: Plan | None
    error: ErrorDocument | None


@dataclass(frozen=True)
class Progress:
    """A plan on its way to the best one; ``id`` is its row."""

    id: int
    plan_id: str
    iteration_ms: float
    bound_ms: float


@dataclass(frozen=True)
class Job:
    """A stored problem and how far its solve is; ``plan`` is the row of its best plan."""

    key: str
    status: Status
    submitted_at: str
    started_at: str | None
    finished_at: str | None
    error: bytes | None
    plan: int | None
    time_limit_s: float


@dataclass(frozen=True)
class Representation:
    """What is sent of a resource: serialized and compressed once, served many times.

    ``etag`` is the digest of ``body``; ``coded`` is the same in each coding that is worth it.
    """

    body: bytes
    etag: str
    coded: Mapping[str, bytes]

    @classmethod
    def of(cls, body: bytes) -> Representation:
        """Name a body by its digest and compress it."""
        return cls(body, f'"{hashlib.sha256(body).hexdigest()}"', compressed(body))

    @property
    def size(self) -> int:
        """Bytes that it takes in memory."""
        return len(self.body) + sum(map(len, self.coded.values()))


def represent(job: Job, plan: bytes | None) -> Representation:
    """Join a job and its plan's stored bytes, which stay as they are."""
    head = {name: getattr(job, name) for name in ("key", "status", "submitted_at", "started_at", "finished_at")}
    error = job.error or b"null"
    tail = b',"error":' + error + b',"plan":' + (plan or b"null") + b"}"
    return Representation.of(json.dumps(head, separators=(",", ":")).encode()[:-1] + tail)


def now() -> str:
    """Return the time in UTC as RFC 3339 text of fixed width, so that text sorts as time."""
    return rfc3339(datetime.now(UTC))


def rfc3339(time: datetime) -> str:
    """Return a time in UTC as it is stored."""
    return time.isoformat(timespec="microseconds").replace("+00:00", "Z")
