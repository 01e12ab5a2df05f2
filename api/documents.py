"""Documents: JSON text that comes in over the wire, and the text that is stored of it."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any, TypeVar

from zbplan.errors import Finding, InvalidInputError
from zbplan.record import Record, load_json

R = TypeVar("R", bound=Record)


def load(text: bytes) -> Any:
    """Parse JSON; raises ``InvalidInputError`` whatever is wrong with it."""
    with _not_too_deep(RecursionError):
        return load_json(text)


def parse(kind: type[R], text: bytes) -> R:
    """Read a document; raises ``InvalidInputError`` whatever is wrong with it."""
    return parse_value(kind, load(text))


def parse_value(kind: type[R], value: object) -> R:
    """Check a JSON value; raises ``InvalidInputError`` whatever is wrong with it."""
    with _not_too_deep(RecursionError):
        return kind.parse(value)


def text_of(record: Record) -> bytes:
    """Return the text to store, in which a lone surrogate is a JSON escape.

    Raises
    ------
    InvalidInputError
        If something in it is nested too deep to be written.
    """
    with _not_too_deep(RecursionError, ValueError):
        return record.to_json().encode("utf-8", "backslashreplace")


@contextmanager
def _not_too_deep(*signs: type[Exception]) -> Iterator[None]:
    try:
        yield
    except signs:
        raise InvalidInputError([Finding("$", "brackets nested too deep", "a flat JSON document")]) from None
