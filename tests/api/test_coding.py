"""Codings of answers, and which one a client gets."""

from __future__ import annotations

import gzip

import pytest
import zstandard

from api.coding import WORTH_COMPRESSING_BYTES, compressed, preferred, tag_of, without_coding

BODY = b'{"start_ms": [1.5, 2.5]}' * WORTH_COMPRESSING_BYTES


@pytest.mark.parametrize(
    ("accepted", "chosen"),
    [
        ("", None),
        ("gzip", "gzip"),
        ("GZip", "gzip"),
        ("zstd", "zstd"),
        ("gzip, deflate, br, zstd", "zstd"),
        ("br,gzip;q=0.5", "gzip"),
        ("zstd;q=0.5, gzip;q=0.8", "gzip"),
        ("zstd ; q=0.8 , gzip ; q=0.8", "zstd"),
        ("gzip; q=0", None),
        ("gzip;q=0.000", None),
        ("zstd;q=0, *", "gzip"),
        ("*", "zstd"),
        ("*;q=0, gzip", "gzip"),
        ("identity", None),
        ("xgzip", None),
        ("gzip;q=1.2.3", None),
        ("gzip;level=9", None),
        (";;,=,", None),
    ],
)
def test_client_gets_what_it_likes_best(accepted: str, chosen: str | None) -> None:
    assert preferred(accepted) == chosen


def test_every_coding_holds_the_body() -> None:
    found = compressed(BODY)
    assert gzip.decompress(found["gzip"]) == zstandard.decompress(found["zstd"]) == BODY
    assert compressed(BODY) == found
    assert all(len(content) < len(BODY) / 10 for content in found.values())


def test_small_bodies_stay_as_they_are() -> None:
    assert compressed(b" " * (WORTH_COMPRESSING_BYTES - 1)) == {}


def test_tags_differ_and_lead_back() -> None:
    tags = [tag_of('"a"', name) for name in ("zstd", "gzip")]
    assert len({'"a"', *tags}) == 3
    assert {without_coding(tag) for tag in ('"a"', *tags)} == {'"a"'}
