"""Profiles: keeping what was measured, so that a problem can refer to it."""

from __future__ import annotations

from typing import Annotated, Any

from fastapi import APIRouter, Path, Request, Response

from api.openapi import EXAMPLE_PROBLEM, content
from api.routes.common import BAD_BODY, NOT_FOUND, ServiceOf, respond

router = APIRouter()

_PROFILE: dict[int | str, dict[str, Any]] = {
    200: {"description": "The profile as it was posted.", **content("Profile")},
    304: {"description": "The client has it."},
}
_EXAMPLE = {**EXAMPLE_PROBLEM["profile"], "name": "gpt-1.5b"}


@router.post(
    "/v1/profiles",
    summary="Keep a profile",
    response_class=Response,
    status_code=201,
    responses={201: {"description": "How to refer to it.", **content("PostedProfile")}, **BAD_BODY},
    openapi_extra={"requestBody": {"required": True, **content("Profile", example=_EXAMPLE)}},
)
async def add(request: Request, service: ServiceOf) -> Response:
    """Keep a profile; a problem may then say `"profile": {"ref": "…"}` with its name (the latest of it) or digest."""
    posted = await service.add_profile(await service.intake.json(request))
    return Response(posted, 201, media_type="application/json")


@router.get(
    "/v1/profiles/by-digest/{digest}",
    summary="One profile, for ever the same",
    response_class=Response,
    responses={**_PROFILE, **NOT_FOUND},
)
async def with_digest(
    digest: Annotated[str, Path(description="A `digest`.")], request: Request, service: ServiceOf
) -> Response:
    """Return the profile with a digest."""
    return respond(request, await service.profile_with_digest(digest))


@router.get(
    "/v1/profiles/{name:path}",
    summary="The latest profile of a name",
    response_class=Response,
    responses={**_PROFILE, **NOT_FOUND},
)
async def named(name: Annotated[str, Path(description="A `name`.")], request: Request, service: ServiceOf) -> Response:
    """Return the profile with a name that was posted last."""
    return respond(request, await service.profile(name))
