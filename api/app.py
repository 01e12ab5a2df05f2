"""App: the routes and the service behind them, as one ASGI application."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Iterable
from contextlib import asynccontextmanager
from typing import Any

from fastapi import FastAPI
from fastapi.routing import APIRoute
from starlette.routing import Route

from api.answers import HANDLERS
from api.database import Database
from api.guard import Guard
from api.metrics import Metrics
from api.observer import Observer
from api.openapi import describe
from api.routes import ROUTERS
from api.routes.direct import DIRECT
from api.service import Service
from api.settings import Settings
from api.tally import Tally
from api.tokens import Keyring, Tokens
from zbplan.problem import REVISION


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
    app.state.metrics = metrics = Metrics()
    app.router.routes.append(DIRECT)
    for router in ROUTERS:
        app.include_router(router)
    own = [route for router in ROUTERS for route in router.routes if isinstance(route, APIRoute)]
    _answer_head(app, own)
    app.state.routes = [route for route in (*app.router.routes, *own) if isinstance(route, Route)]
    for error, handler in HANDLERS.items():
        app.add_exception_handler(error, handler)
    app.add_middleware(Guard, settings=settings)
    app.add_middleware(Observer, metrics=metrics)
    app.openapi = lambda: _openapi(app)  # type: ignore[method-assign]
    return app


def _answer_head(app: FastAPI, routes: Iterable[APIRoute]) -> None:
    """Answer HEAD where GET is answered (RFC 9110, section 9.3.2); the server keeps the body to itself."""
    for route in routes:
        if "GET" in (route.methods or ()):
            app.add_api_route(route.path, route.endpoint, methods=["HEAD"], include_in_schema=False)


@asynccontextmanager
async def _lifespan(app: FastAPI) -> AsyncIterator[None]:
    settings = app.state.settings
    database = Database(settings.database_url)
    app.state.service = service = Service(settings, app.state.metrics.submitted)
    app.state.keyring = Keyring(Tokens(database))
    app.state.tally = Tally(database)
    watching = asyncio.create_task(app.state.keyring.watch())
    try:
        await service.start()
        yield
    finally:
        watching.cancel()
        service.close()
        await service.stop()
        database.close()


def _openapi(app: FastAPI) -> dict[str, Any]:
    app.openapi_schema = app.openapi_schema or describe(app)
    return app.openapi_schema
