"""Answers: whatever goes wrong, as an RFC 9457 document."""

from __future__ import annotations

import logging
from http import HTTPStatus
from typing import Any

from fastapi import Request, Response
from fastapi.exceptions import RequestValidationError
from sqlalchemy.exc import DataError, SQLAlchemyError
from starlette.exceptions import HTTPException
from starlette.routing import Match

from api.refusal import MEDIA_TYPE, ErrorDocument, Refusal, document
from api.sqlite_file import MovedError
from zbplan.errors import Finding

logger = logging.getLogger(__name__)

RETRY_AFTER_S = 5

_HEADERS = {
    HTTPStatus.UNAUTHORIZED: {"WWW-Authenticate": "Bearer"},
    HTTPStatus.TOO_MANY_REQUESTS: {"Retry-After": str(RETRY_AFTER_S)},
    HTTPStatus.SERVICE_UNAVAILABLE: {"Retry-After": str(RETRY_AFTER_S)},
}
"""What a status owes its client, beside the document."""


def answer(refusal: ErrorDocument, **headers: str) -> Response:
    """Return the answer that is no."""
    sent = {**_HEADERS.get(HTTPStatus(refusal.status), {}), **headers}
    return Response(refusal.to_bytes(), refusal.status, sent, media_type=MEDIA_TYPE)


def answer_for_now(error: Exception) -> Response:
    """Return the answer while the store cannot be used."""
    logger.error("the store failed", exc_info=error)
    detail = "found the store out of order; nothing was lost that was answered for; try again later"
    if isinstance(error, MovedError):
        detail = f"found {error.orig}; needed {error.needed}"
    return answer(document("store", 503, "The store cannot be used", detail))


async def _refusal(_: Request, refusal: Exception) -> Response:
    assert isinstance(refusal, Refusal)  # noqa: S101 - registered for it
    return answer(refusal.document)


async def _no_route(request: Request, error: Exception) -> Response:
    assert isinstance(error, HTTPException)  # noqa: S101 - registered for it
    title = HTTPStatus(error.status_code).phrase
    detail = f"found {request.method} {request.url.path[:200]}; needed one of the routes in /openapi.json"
    headers = {**(error.headers or {}), **({"Allow": _allowed(request)} if error.status_code == 405 else {})}
    return answer(document("http", error.status_code, title, detail), **headers)


def _allowed(request: Request) -> str:
    """Return the methods of every route of a path: the router names those of the first one."""
    matching = (route for route in request.app.state.routes if route.matches(request.scope)[0] is not Match.NONE)
    return ", ".join(sorted({method for route in matching for method in route.methods}))


async def _wrong_parameters(_: Request, error: Exception) -> Response:
    assert isinstance(error, RequestValidationError)  # noqa: S101 - registered for it
    findings = [_finding(item) for item in error.errors()]
    detail = "; ".join(str(finding) for finding in findings[:3])
    return answer(document("invalid_input", 422, "A parameter is not valid", detail, findings))


def _finding(item: dict[str, Any]) -> Finding:
    path = f"{item['loc'][0]}.{item['loc'][-1]}"
    return Finding(
        path, repr(item["input"])[:80], item["msg"].removeprefix("Input should be ").removeprefix("Value error, ")
    )


async def _store_out_of_order(_: Request, error: Exception) -> Response:
    return answer_for_now(error)


async def _cannot_be_stored(request: Request, error: Exception) -> Response:
    logger.info("the store cannot hold what was asked for: %s", error)
    found = f"{request.method} {request.url.path[:200]!r} with a character or number that the store cannot hold"
    finding = Finding("$", found, "text without NUL, and numbers of the usual size")
    return answer(document("invalid_input", 422, "The input is not valid", str(finding), [finding]))


async def _failure(_: Request, error: Exception) -> Response:
    return answer(document("internal", 500, "The service failed", f"found {type(error).__name__}; see its log"))


HANDLERS = {
    Refusal: _refusal,
    HTTPException: _no_route,
    RequestValidationError: _wrong_parameters,
    DataError: _cannot_be_stored,
    SQLAlchemyError: _store_out_of_order,
    Exception: _failure,
}
"""What answers for each kind of error."""
