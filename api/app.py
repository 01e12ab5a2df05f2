"""App: the routes and the service behind them, as one ASGI application."""

from __future__ import annotations

import logging
from collections.abc import AsyncIterator, Mapping
from contextlib import asynccontextmanager
from http import HTTPStatus
from typing import Any

from fastapi import FastAPI, Request, Response
from fastapi.exceptions import RequestValidationError
from sqlalchemy.exc import SQLAlchemyError
from starlette.exceptions import HTTPException

from api.openapi import describe
from api.refusal import MEDIA_TYPE, ErrorDocument, Refusal, document
from api.routes import ROUTERS
from api.service import Service
from api.settings import Settings
from zbplan.errors import Finding
from zbplan.problem import REVISION

logger = logging.getLogger(__name__)

RETRY_AFTER_S = "5"


def create_app(settings: Settings) -> FastAPI:
    """Return the application; its worker processes live from its start-up to its shutdown."""
    app = FastAPI(
        title="zbplan",
        version=f"1.{REVISION}",
        summary="Plans for zero-bubble pipeline-parallel training",
        description="POST a problem, GET the best plan so far with a proven bound. Errors are RFC 9457 documents.",
        lifespan=_lifespan,
    )
    app.state.settings = settings
    for router in ROUTERS:
        app.include_router(router)
    app.add_exception_handler(Refusal, _refuse)
    app.add_exception_handler(HTTPException, _refuse_request)
    app.add_exception_handler(RequestValidationError, _refuse_parameters)
    app.add_exception_handler(SQLAlchemyError, _refuse_for_now)
    app.add_exception_handler(Exception, _fail)
    app.openapi = lambda: _openapi(app)  # type: ignore[method-assign]
    return app


@asynccontextmanager
async def _lifespan(app: FastAPI) -> AsyncIterator[None]:
    app.state.service = service = Service(app.state.settings)
    try:
        await service.start()
        yield
    finally:
        service.close()
        await service.stop()


def _openapi(app: FastAPI) -> dict[str, Any]:
    app.openapi_schema = app.openapi_schema or describe(app)
    return app.openapi_schema


def _answer(refusal: ErrorDocument, headers: Mapping[str, str] | None = None) -> Response:
    return Response(refusal.to_bytes(), refusal.status, headers, media_type=MEDIA_TYPE)


async def _refuse(_: Request, refusal: Exception) -> Response:
    assert isinstance(refusal, Refusal)  # noqa: S101 - registered for it
    headers = {"Retry-After": RETRY_AFTER_S} if refusal.document.status == HTTPStatus.SERVICE_UNAVAILABLE else None
    return _answer(refusal.document, headers)


async def _refuse_request(request: Request, error: Exception) -> Response:
    assert isinstance(error, HTTPException)  # noqa: S101 - registered for it
    title = HTTPStatus(error.status_code).phrase
    detail = f"found {request.method} {request.url.path[:200]}; needed one of the routes in /openapi.json"
    return _answer(document("http", error.status_code, title, detail), error.headers)


async def _refuse_parameters(_: Request, error: Exception) -> Response:
    assert isinstance(error, RequestValidationError)  # noqa: S101 - registered for it
    findings = [
        Finding(
            f"{item['loc'][0]}.{item['loc'][-1]}",
            repr(item["input"])[:80],
            item["msg"].removeprefix("Input should be "),
        )
        for item in error.errors()
    ]
    detail = "; ".join(str(finding) for finding in findings[:3])
    return _answer(document("invalid_input", 422, "A parameter is not valid", detail, findings))


async def _refuse_for_now(_: Request, error: Exception) -> Response:
    logger.error("the store failed", exc_info=error)
    detail = "found the store out of order; nothing was lost that was answered for; try again later"
    return _answer(document("store", 503, "The store cannot be used", detail), {"Retry-After": RETRY_AFTER_S})


async def _fail(_: Request, error: Exception) -> Response:
    return _answer(document("internal", 500, "The service failed", f"found {type(error).__name__}; see its log"))
