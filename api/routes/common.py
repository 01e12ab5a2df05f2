"""Common: what all routes share."""

from __future__ import annotations

from typing import Annotated

from fastapi import Depends, Request, Response

from api.coding import tag_of
from api.documents import text_of
from api.openapi import refusals
from api.requests import coding_for, has
from api.resource import Representation
from api.service import Service
from zbplan.record import Record


def service_of(request: Request) -> Service:
    """Return the service behind the application; where thousands ask at once, a dependency would cost too much."""
    service: Service = request.app.state.service
    return service


async def _service(request: Request) -> Service:
    # A plain function would cost a thread per request.
    return service_of(request)


ServiceOf = Annotated[Service, Depends(_service)]

_BUSY = "The service cannot answer now; `Retry-After` says when to ask again."
BAD_QUERY = refusals(status_422="A parameter is wrong: `errors` says which and what is needed.", status_503=_BUSY)
NOT_FOUND = {**refusals(status_404="There is no such thing."), **BAD_QUERY}
BAD_BODY = refusals(
    status_408="The body comes in too slowly.",
    status_413="The body is too large.",
    status_415="The body is not declared as JSON.",
    status_422="The body is not what it should be: `errors` says where and what is needed.",
    status_503=_BUSY,
)


def json_response(record: Record, status: int = 200) -> Response:
    """Send a document."""
    return Response(text_of(record), status, media_type="application/json")


def respond(
    request: Request,
    representation: Representation,
    *,
    caching: str = "no-cache",
    status: int = 200,
    media_type: str = "application/json",
    **headers: str,
) -> Response:
    """Send a representation, compressed if the client takes that, or 304 to a reader that has it."""
    etag, body = representation.etag, representation.body
    sent = {"Cache-Control": caching, "Vary": "Accept-Encoding", **headers}
    if representation.coded and (coding := coding_for(request)) is not None:
        etag, body = tag_of(etag, coding), representation.coded[coding]
        sent["Content-Encoding"] = coding
    if request.method in ("GET", "HEAD") and has(request, representation.etag):
        return Response(status_code=304, headers={"ETag": etag, "Cache-Control": caching, "Vary": "Accept-Encoding"})
    return Response(body, status, {"ETag": etag, **sent}, media_type=media_type)
