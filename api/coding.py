"""Coding: answers compressed as their clients take them (RFC 9110, sections 8.4 and 12.5.3)."""

from __future__ import annotations

import gzip
import re
from collections.abc import Callable, Mapping
from functools import lru_cache

import zstandard

GZIP_LEVEL = 6
ZSTD_LEVEL = 9

WORTH_COMPRESSING_BYTES = 1 << 12

_CHOICE = re.compile(r"\s*(?P<coding>[a-z0-9*_.-]+)\s*(?:;\s*q=(?P<weight>[0-9.]{1,5})\s*)?")
_TAG = re.compile(r'-(?:zstd|gzip)"$')


def _gzip(body: bytes) -> bytes:
    return gzip.compress(body, GZIP_LEVEL, mtime=0)


def _zstd(body: bytes) -> bytes:
    return zstandard.ZstdCompressor(level=ZSTD_LEVEL).compress(body)


_CODINGS: Mapping[str, Callable[[bytes], bytes]] = {"zstd": _zstd, "gzip": _gzip}
"""What there is, the best first."""


def compressed(body: bytes) -> dict[str, bytes]:
    """Return a body in every coding, or in none where that is not worth it."""
    worth = len(body) >= WORTH_COMPRESSING_BYTES
    return {coding: compress(body) for coding, compress in _CODINGS.items()} if worth else {}


@lru_cache(128)
def preferred(accepted: str) -> str | None:
    """Return the coding that an ``Accept-Encoding`` likes best, the best of those that it likes as much; or None."""
    weights = {choice["coding"]: _weight(choice["weight"]) for choice in _choices(accepted)}
    liked = {coding: weights.get(coding, weights.get("*", 0)) for coding in _CODINGS}
    best = max(liked, key=lambda coding: liked[coding])
    return best if liked[best] > 0 else None


def tag_of(etag: str, coding: str) -> str:
    """Return the ETag of a coded representation, which is another sequence of bytes."""
    return f'{etag[:-1]}-{coding}"'


def without_coding(etag: str) -> str:
    """Return the ETag of a representation as it is without a coding."""
    return _TAG.sub('"', etag)


def _choices(accepted: str) -> list[re.Match[str]]:
    found = (_CHOICE.fullmatch(choice) for choice in accepted.lower().split(","))
    return [choice for choice in found if choice is not None]


def _weight(text: str | None) -> float:
    try:
        return 1.0 if text is None else float(text)
    except ValueError:
        return 0.0
