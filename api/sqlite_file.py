"""SQLite file: the one that a database is in, which may go away under a running service.

SQLite goes on with a file that was deleted, and all that it is told is gone when the last connection closes.
"""

from __future__ import annotations

from pathlib import Path
from typing import NoReturn

from sqlalchemy.engine import make_url
from sqlalchemy.exc import OperationalError


class MovedError(OperationalError):
    """The file is not the one that was opened; ``orig`` says what was found, and names no path."""

    needed = "the one that was opened: put it back, or restart the service, which then begins with what is there"


class SqliteFile:
    """The file at a path, as it was when the database was opened.

    Parameters
    ----------
    path
        Where it is, or is to be.
    """

    def __init__(self, path: Path) -> None:
        self._path = path.absolute()
        self._opened: tuple[int, int] | None = None

    def require(self, *, may_be_made: bool = False) -> None:
        """Raise ``MovedError`` unless it is still the one that was opened; that is the first one that is seen."""
        found = self._identity()
        if found is None and not (may_be_made and self._opened is None):
            _refuse("no file")
        self._opened = self._opened or found
        if found != self._opened:
            _refuse("another file")

    def _identity(self) -> tuple[int, int] | None:
        try:
            status = self._path.stat()
        except OSError:
            return None
        return status.st_dev, status.st_ino


def file_of(database_url: str) -> SqliteFile | None:
    """Return the file of a database; None where it is not one with a plain path."""
    url = make_url(database_url)
    plain = url.get_backend_name() == "sqlite" and url.database and not url.database.startswith(("file:", ":memory:"))
    return SqliteFile(Path(str(url.database))) if plain else None


def _refuse(found: str) -> NoReturn:
    raise MovedError("BEGIN", None, FileNotFoundError(f"{found} where that of the database was"))
