"""What is read of request headers."""

from __future__ import annotations

import pytest
from fastapi import Request

from api.requests import has, preferred_wait_s


def request(name: str, *values: str) -> Request:
    headers = [(name.encode(), value.encode()) for value in values]
    return Request({"type": "http", "headers": headers})


@pytest.mark.parametrize(
    ("values", "seconds"),
    [
        ((), 0),
        (("wait=5",), 5),
        (("Wait = 5",), 5),
        (('wait="5"',), 5),
        (("respond-async, wait=5",), 5),
        (("respond-async; foo=1", "wait=5"), 5),
        (("wait=61",), 60),
        (("wait=999999999",), 60),
        (("wait=-5",), 0),
        (("wait=5.5",), 0),
        (("wait=soon",), 0),
        (("nowait=5",), 0),
    ],
)
def test_preferred_wait(values: tuple[str, ...], seconds: int) -> None:
    assert preferred_wait_s(request("prefer", *values), 60) == seconds


@pytest.mark.parametrize(
    ("values", "held"),
    [
        ((), False),
        (('"a"',), True),
        (('W/"a"',), True),
        (('"a-gzip"',), True),
        (('W/"a-zstd"',), True),
        (('"a-br"',), False),
        (('"b", "a"',), True),
        (('"b"', '"a"'), True),
        (("*",), True),
        (('"b"',), False),
        (("a",), False),
    ],
)
def test_if_none_match(values: tuple[str, ...], held: bool) -> None:
    assert has(request("if-none-match", *values), '"a"') == held
