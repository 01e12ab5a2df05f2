"""Exports: the best plan so far in the formats of others."""

from __future__ import annotations

from fastapi import APIRouter, Request, Response

from api.openapi import refusals
from api.routes.common import NOT_FOUND, ServiceOf, respond
from api.routes.plans import Key

router = APIRouter()


@router.get(
    "/v1/plans/{key}.csv",
    summary="A plan's orders as PyTorch's CSV",
    response_class=Response,
    responses={
        200: {
            "description": "A row per device, a cell per op; no times.",
            "content": {"text/csv": {"schema": {"type": "string"}}},
        },
        304: {"description": "The client has it."},
        **NOT_FOUND,
        **refusals(status_422="PyTorch would run the plan, but train on wrong numbers: `errors` says where."),
    },
)
async def csv(key: Key, request: Request, service: ServiceOf) -> Response:
    """Return what `torch.distributed.pipelining` reads with `_load_csv(format="compute_only")`."""
    return respond(request, await service.export(key, "csv"), media_type="text/csv")


@router.get(
    "/v1/plans/{key}.trace.json",
    summary="A plan as a Chrome trace",
    response_class=Response,
    responses={
        200: {
            "description": "Trace events.",
            "content": {"application/json": {"schema": {"type": "object"}}},
        },
        304: {"description": "The client has it."},
        **NOT_FOUND,
    },
)
async def trace(key: Key, request: Request, service: ServiceOf) -> Response:
    """Return what Perfetto and `chrome://tracing` open: a process per device, and arrows for transfers."""
    return respond(request, await service.export(key, "trace"))
