"""Judging: whether a plan, from wherever it comes, is legal."""

from __future__ import annotations

from fastapi import APIRouter, Request, Response

from api.openapi import content
from api.routes.common import BAD_BODY, ServiceOf, body_of

router = APIRouter()


@router.post(
    "/v1/validate",
    summary="Judge a plan",
    response_class=Response,
    responses={200: {"description": "Legal or not, and every reason why not.", **content("Judgement")}, **BAD_BODY},
    openapi_extra={"requestBody": {"required": True, **content("Plan")}},
)
async def validate(request: Request, service: ServiceOf) -> Response:
    """Judge a plan against the problem that it carries; nothing is stored."""
    judgement = await service.judge(await body_of(request, service))
    return Response(judgement, media_type="application/json")
