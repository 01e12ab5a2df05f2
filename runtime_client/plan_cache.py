"""PlanCache: the plans that a job has fetched, on disk, for the time when the service does not answer."""

from __future__ import annotations

import hashlib
import os
import stat
import tempfile
from pathlib import Path

from zbplan.errors import InvalidInputError
from zbplan.plan import Plan

PRIVATE = 0o700


class CacheError(Exception):
    """The folder or a file in it cannot be used; the message says why."""


def default_folder() -> Path:
    """Return where plans are kept unless another folder is named."""
    return Path(os.environ.get("XDG_CACHE_HOME") or Path.home() / ".cache") / "zbplan" / "plans"


class PlanCache:
    """Plans by key in a folder that only its user can enter.

    A file is a line with the SHA-256 of the plan's JSON text, then that text. It is replaced as a whole: whoever reads
    meanwhile sees the old one or the new one.
    """

    def __init__(self, folder: str | Path) -> None:
        self._folder = Path(folder)

    def path(self, key: str) -> Path:
        """Return where the plan of a key is kept."""
        return self._folder / f"{key}.plan"

    def keep(self, plan: Plan) -> None:
        """Write a plan down; raises ``CacheError`` if that cannot be done."""
        content = plan.to_json().encode()
        try:
            self._folder.mkdir(PRIVATE, parents=True, exist_ok=True)
            self._require_private()
            with tempfile.NamedTemporaryFile(dir=self._folder, delete=False) as file:
                file.write(hashlib.sha256(content).hexdigest().encode() + b"\n" + content)
            Path(file.name).replace(self.path(plan.key))
        except OSError as error:
            raise CacheError(f"{self._folder}: {error.strerror or error}") from error

    def get(self, key: str) -> Plan:
        """Return the plan of a key; raises ``CacheError`` if there is none, or one that is damaged."""
        path = self.path(key)
        try:
            self._require_private()
            digest, _, content = path.read_bytes().partition(b"\n")
        except OSError as error:
            raise CacheError(f"{path}: {error.strerror or error}") from error
        if hashlib.sha256(content).hexdigest().encode() != digest:
            raise CacheError(f"{path}: found a file whose digest is not that of its content")
        try:
            plan = Plan.parse_json(content)
        except InvalidInputError as error:
            raise CacheError(f"{path}: {error}") from error
        if plan.key != key:
            raise CacheError(f"{path}: found the plan of key {plan.key}")
        return plan

    def _require_private(self) -> None:
        status = self._folder.stat()
        mode = stat.S_IMODE(status.st_mode)
        if status.st_uid != os.geteuid() or mode != PRIVATE:
            raise CacheError(
                f"{self._folder}: found mode {mode:04o} and owner {status.st_uid}; needed a folder of mode 0700 "
                f"that belongs to user {os.geteuid()}"
            )
