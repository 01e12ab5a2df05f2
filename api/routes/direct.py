"""Direct: the one route that thousands of ranks ask at once, without what FastAPI does around a route.

That takes longer than the answer itself. The route is the documented one: what is not asked here goes there.
"""

from __future__ import annotations

from fastapi import Request, Response
from starlette.convertors import StringConvertor, register_url_convertor
from starlette.routing import Match, Route
from starlette.types import Scope

from api.routes.plans import read


class _KeyConvertor(StringConvertor):
    """A key has no dot, unlike the names of exports."""

    regex = "[^/.]+"


class _Direct(Route):
    """A route that says which it is, as those of FastAPI do."""

    def matches(self, scope: Scope) -> tuple[Match, Scope]:
        match, found = super().matches(scope)
        return match, {**found, "route": self}


async def _read(request: Request) -> Response:
    return await read(request.path_params["key"], request)


register_url_convertor("key", _KeyConvertor())

DIRECT = _Direct("/v1/plans/{key:key}", _read, methods=["GET"], include_in_schema=False)
