"""Unsent: the plan that a solver process found and the store may not have, so that it outlives that process."""

from __future__ import annotations

import hashlib
import logging
import os
import secrets
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Self

from api.statements import Found
from zbplan.plan import Plan

logger = logging.getLogger(__name__)

_DIGEST_BYTES = hashlib.sha256().digest_size


@dataclass(frozen=True)
class Place:
    """Where a process holds memory that another may open, and its name: a path may come to mean another file."""

    path: Path
    name: str


@dataclass(frozen=True)
class Unsent:
    """Memory that a service and the process that solves for it share; empty while nothing is unsent.

    It is gone when the service is, however that ends.
    """

    file: int
    place: Place

    @classmethod
    @contextmanager
    def held(cls) -> Iterator[Self]:
        """Hold memory for one solve."""
        name = f"zbplan-{secrets.token_hex(8)}"
        file = os.memfd_create(name)
        try:
            yield cls(file, Place(Path(f"/proc/{os.getpid()}/fd/{file}"), name))
        finally:
            os.close(file)

    @classmethod
    @contextmanager
    def at(cls, place: Place) -> Iterator[Self]:
        """Open what another process holds."""
        file = _opened(place)
        try:
            yield cls(file, place)
        finally:
            os.close(file)

    def put(self, found: Found) -> None:
        """Lay a plan down before it is sent."""
        content = hashlib.sha256(found.document).digest() + found.document
        try:
            self.clear()
            if os.pwrite(self.file, content, 0) < len(content):
                logger.warning("there was no room for a plan, which is with the store or nowhere")
        except OSError as error:
            logger.warning("a plan is with the store or nowhere: %s", error)

    def clear(self) -> None:
        """Note that the plan was sent."""
        os.truncate(self.file, 0)

    def plan(self) -> Found | None:
        """Return the plan that was not sent, if there is one and all of it."""
        document = self._document()
        return Found.of(Plan.parse_json(document)) if document else None

    def is_torn(self) -> bool:
        """Return whether a plan was not sent, and not laid down to its end either."""
        return self._document() is None

    def _document(self) -> bytes | None:
        """Return the text of the plan, empty where none is unsent; None for part of one."""
        content = os.pread(self.file, os.fstat(self.file).st_size, 0)
        digest, document = content[:_DIGEST_BYTES], content[_DIGEST_BYTES:]
        return document if not content or hashlib.sha256(document).digest() == digest else None


def _opened(place: Place) -> int:
    try:
        file = os.open(place.path, os.O_RDWR)
    except OSError as error:
        logger.warning("plans that the store does not take are lost with this process: %s", error)
        return os.memfd_create(place.name)
    if place.name in str(Path(f"/proc/self/fd/{file}").readlink()):
        return file
    os.close(file)
    raise FileNotFoundError(f"found something else at {place.path}; whoever held it is gone")
