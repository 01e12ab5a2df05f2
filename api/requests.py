"""Requests: what the routes read of the headers of one."""

from __future__ import annotations

import re

from fastapi import Request

from api.coding import preferred, without_coding

_WAIT = re.compile(r"(?:^|[,;])\s*wait\s*=\s*\"?(\d{1,9})\"?\s*(?=$|[,;])", re.IGNORECASE)


def preferred_wait_s(request: Request, most_s: int) -> int:
    """Return N of ``Prefer: wait=N`` (RFC 7240), at most ``most_s``; 0 without one."""
    found = _WAIT.search(",".join(request.headers.getlist("prefer")))
    return 0 if found is None else min(int(found[1]), most_s)


def has(request: Request, etag: str) -> bool:
    """Return whether ``If-None-Match`` says that the client has this representation, in whatever coding."""
    held = ",".join(request.headers.getlist("if-none-match"))
    tags = {without_coding(tag.strip().removeprefix("W/")) for tag in held.split(",")}
    return etag in tags or "*" in tags


def coding_for(request: Request) -> str | None:
    """Return the coding in which the client would like to have the answer, of those that there are; or None."""
    return preferred(",".join(request.headers.getlist("accept-encoding")))
