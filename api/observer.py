"""Observer: gives each request an id, and notes in log and metrics what became of it."""

from __future__ import annotations

import logging
import re
import time
import uuid

from starlette.datastructures import Headers, MutableHeaders
from starlette.types import ASGIApp, Message, Receive, Scope, Send
from structlog.contextvars import bind_contextvars

from api.metrics import Metrics

logger = logging.getLogger("api.access")

HEADER = "X-Request-ID"

_SENT_BY_CLIENTS = re.compile(r"[A-Za-z0-9._:/+=-]{1,128}")
_READS = ("GET", "HEAD", "OPTIONS")
_METHODS = {*_READS, "POST", "PUT", "PATCH", "DELETE"}
"""What is counted by its name: a client may make up any other, and each would be a series for ever."""


class Observer:
    """Passes requests on to the application and looks at the answers.

    Reads that succeed are logged as ``DEBUG`` only: thousands of ranks may ask at once, and the metrics count them.
    """

    def __init__(self, app: ASGIApp, metrics: Metrics) -> None:
        self._app = app
        self._metrics = metrics

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Observe one request."""
        if scope["type"] != "http":
            return await self._app(scope, receive, send)
        identity = _identity(Headers(scope=scope))
        began_at_s, status = time.perf_counter(), 500

        async def send_named(message: Message) -> None:
            nonlocal status
            if message["type"] == "http.response.start":
                status = message["status"]
                MutableHeaders(scope=message)[HEADER] = identity
            await send(message)

        bind_contextvars(request_id=identity)  # for this request only: the server gives each a task of its own
        try:
            return await self._app(scope, receive, send_named)
        finally:
            self._note(scope, status, time.perf_counter() - began_at_s)

    def _note(self, scope: Scope, status: int, seconds: float) -> None:
        method = scope["method"] if scope["method"] in _METHODS else "other"
        self._metrics.request(method, getattr(scope.get("route"), "path_format", "none"), status, seconds)
        level = logging.DEBUG if scope["method"] in _READS and status < 400 else logging.INFO
        if logger.isEnabledFor(level):
            what = {"method": scope["method"], "path": scope["path"], "status": status, "ms": round(1e3 * seconds, 3)}
            logger.log(level, "request", extra={**what, "caller": scope.get("state", {}).get("caller")})


def _identity(headers: Headers) -> str:
    """Return the id that a proxy or client gave the request, or a new one."""
    given = headers.get(HEADER, "")
    return given if _SENT_BY_CLIENTS.fullmatch(given) else uuid.uuid4().hex
