"""Intake: bodies on their way in, which are refused before anything is parsed."""

from __future__ import annotations

import asyncio

from fastapi import Request
from starlette.requests import ClientDisconnect

from api.refusal import Refusal, document
from api.settings import Settings
from zbplan.errors import Finding


class Intake:
    """Reads bodies, and keeps in mind how much of them is held while they come in.

    Parameters
    ----------
    settings
        How long a body may be and take, and how much all of them may hold.
    """

    def __init__(self, settings: Settings) -> None:
        self._most_bytes = settings.max_body_bytes
        self._most_s = settings.max_body_s
        self._room_bytes = settings.max_bodies_bytes
        self._held_bytes = 0

    async def json(self, request: Request) -> bytes:
        """Return the body as it came.

        Raises
        ------
        Refusal
            Unless it is declared as JSON, comes in whole and soon enough, and neither it nor all that come in at once
            are too large, which is judged meanwhile.
        """
        media_type = request.headers.get("content-type", "nothing").partition(";")[0].strip().lower()
        if media_type != "application/json":
            detail = f"found content type {media_type[:80]!r}; needed application/json"
            raise Refusal(document("unsupported_media_type", 415, "The body is not declared as JSON", detail))
        try:
            async with asyncio.timeout(self._most_s):
                return await self._read(request)
        except TimeoutError:
            finding = Finding("$", f"no end of the body within {self._most_s:g} s", "a body that comes in faster")
            raise Refusal(document("too_slow", 408, "The body comes in too slowly", str(finding), [finding])) from None
        except ClientDisconnect:
            finding = Finding("$", "a client that is gone", "the whole body")
            raise Refusal(document("cut_off", 400, "The body ends too early", str(finding), [finding])) from None

    async def _read(self, request: Request) -> bytes:
        body = bytearray()
        try:
            async for chunk in request.stream():
                body += chunk
                self._held_bytes += len(chunk)
                self._require_room(len(body))
            return bytes(body)
        finally:
            self._held_bytes -= len(body)

    def _require_room(self, size: int) -> None:
        if size > self._most_bytes:
            finding = Finding("$", f"more than {self._most_bytes} bytes", f"at most {self._most_bytes} bytes")
            raise Refusal(document("too_large", 413, "The body is too large", str(finding), [finding]))
        if self._held_bytes > self._room_bytes:
            detail = f"found {self._held_bytes} bytes of bodies that come in; needed fewer; try again later"
            raise Refusal(document("busy", 503, "Too much comes in", detail))
