"""Files: what the command line reads and writes; ``-`` is standard input and output."""

from __future__ import annotations

import os
import sys
from pathlib import Path

from zbplan.errors import Finding, InvalidInputError

STANDARD = "-"
STANDARD_INPUT = 0


def read(source: str) -> bytes:
    """Return all bytes of a file or of standard input.

    Raises
    ------
    InvalidInputError
        If it cannot be read.
    """
    try:
        if source == STANDARD:
            with open(STANDARD_INPUT, "rb", closefd=False) as stream:
                return stream.read()
        return Path(source).read_bytes()
    except OSError as error:
        raise _refused(source, error, "a file that can be read") from None
    except ValueError as error:
        raise InvalidInputError([Finding(repr(source), str(error), "the path of a file")]) from None


def check_writable(target: str) -> None:
    """Refuse a target that ``write`` could not write, before anything is computed for it.

    Raises
    ------
    InvalidInputError
        If its folder is missing, or if it is a folder or must not be written.
    """
    if target == STANDARD:
        return
    try:
        found = _obstacle(_place(target))
    except (OSError, ValueError) as error:
        found = str(error)
    if found:
        raise InvalidInputError([Finding(repr(target), found, "a file in a folder that can be written")])


def write(target: str, text: str) -> None:
    """Write a text to a file or to standard output.

    A file appears whole or not at all: whoever reads it meanwhile sees the old one. What is no ordinary file, such as
    a pipe, is written in place.

    Raises
    ------
    InvalidInputError
        If it cannot be written.
    """
    if target == STANDARD:
        sys.stdout.write(text)
        return
    check_writable(target)
    path = _place(target)
    try:
        _write_in_place(path, text) if path.exists() and not path.is_file() else _replace(path, text)
    except BrokenPipeError:
        raise
    except OSError as error:
        raise _refused(target, error, "a file that can be written") from None


def _place(target: str) -> Path:
    """Return where a target is: links are followed, but for those to a pipe, which has a name only by the link."""
    path = Path(target)
    place = path.resolve()
    return path if path.exists() and not place.exists() else place


def _obstacle(path: Path) -> str | None:
    if not path.parent.is_dir():
        return f"no folder {str(path.parent)!r}"
    if path.is_dir():
        return "a folder"
    if not os.access(path if path.exists() else path.parent, os.W_OK):
        return "no permission to write"
    return None


def _write_in_place(path: Path, text: str) -> None:
    with path.open("w", encoding="utf-8") as file:
        file.write(text)


def _replace(path: Path, text: str) -> None:
    # Not tempfile: its files are private, and the one that takes the name keeps its mode.
    beside = path.with_name(f".{path.name[:200]}.{os.getpid()}")
    try:
        _write_in_place(beside, text)
        beside.replace(path)
    finally:
        beside.unlink(missing_ok=True)


def _refused(name: str, error: OSError, needed: str) -> InvalidInputError:
    return InvalidInputError([Finding(repr(name), error.strerror or str(error), needed)])
