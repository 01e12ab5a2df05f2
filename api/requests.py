"""Requests: what the routes read of one, and refuse before anything is parsed."""

from __future__ import annotations

import asyncio
import re

from fastapi import Request

from api.coding import preferred, without_coding
from api.refusal import Refusal, document
from zbplan.errors import Finding

_WAIT = re.compile(r"(?:^|[,;])\s*wait\s*=\s*\"?(\d{1,9})\"?\s*(?=$|[,;])", re.IGNORECASE)


async def json_body(request: Request, max_bytes: int, max_s: float) -> bytes:
    """Return the body as it came.

    Raises
    ------
    Refusal
        Unless it is declared as JSON, is at most ``max_bytes`` long, which is judged while it comes in, and takes at
        most ``max_s`` seconds to do so.
    """
    media_type = request.headers.get("content-type", "nothing").partition(";")[0].strip().lower()
    if media_type != "application/json":
        detail = f"found content type {media_type[:80]!r}; needed application/json"
        raise Refusal(document("unsupported_media_type", 415, "The body is not declared as JSON", detail))
    try:
        async with asyncio.timeout(max_s):
            return await _at_most(request, max_bytes)
    except TimeoutError:
        finding = Finding("$", f"no end of the body within {max_s:g} s", "a body that comes in faster")
        raise Refusal(document("too_slow", 408, "The body comes in too slowly", str(finding), [finding])) from None


async def _at_most(request: Request, max_bytes: int) -> bytes:
    body = bytearray()
    async for chunk in request.stream():
        body += chunk
        if len(body) > max_bytes:
            finding = Finding("$", f"more than {max_bytes} bytes", f"at most {max_bytes} bytes")
            raise Refusal(document("too_large", 413, "The body is too large", str(finding), [finding]))
    return bytes(body)


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
