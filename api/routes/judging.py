"""Judging: whether a plan is legal, and what each method makes of a problem; nothing is stored."""

from __future__ import annotations

from fastapi import APIRouter, Request, Response

from api.openapi import EXAMPLE_PROBLEM, content
from api.routes.common import BAD_BODY, ServiceOf

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
    judgement = await service.judge(await service.intake.json(request))
    return Response(judgement, media_type="application/json")


@router.post(
    "/v1/compare",
    summary="Compare methods",
    response_class=Response,
    responses={200: {"description": "A row per method, the best first.", **content("Comparison")}, **BAD_BODY},
    openapi_extra={"requestBody": {"required": True, **content("Problem", example=EXAMPLE_PROBLEM)}},
)
async def compare(request: Request, service: ServiceOf) -> Response:
    """Say what every constructive method makes of a problem; `auto` is the best of them, and nothing is searched for.

    The method that the problem names does not count.
    """
    return Response(await service.compare(await service.intake.json(request)), media_type="application/json")
