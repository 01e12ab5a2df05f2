"""Sweeps: many problems that differ in memory limit, microbatches or placement, as one."""

from __future__ import annotations

from typing import Annotated, Any

from fastapi import APIRouter, Path, Request, Response

from api.openapi import EXAMPLE_PROBLEM, content
from api.requests import preferred_wait_s
from api.routes.common import BAD_BODY, NOT_FOUND, ServiceOf, respond
from api.routes.plans import PREFER

router = APIRouter()

Key = Annotated[str, Path(description="The key of a sweep, as its POST gives it.")]

_SWEEP: dict[int | str, dict[str, Any]] = {
    200: {"description": "Every cell is final.", **content("SweepResource")},
    202: {"description": "Some cells wait or are being solved.", **content("SweepResource")},
}
_EXAMPLE = {
    "problem": {**EXAMPLE_PROBLEM, "time_limit_s": 1},
    "memory_limits": ["1x", "2x", None],
    "microbatches": [8, 16],
}


@router.post(
    "/v1/sweeps",
    summary="Ask for a table of plans",
    response_class=Response,
    status_code=202,
    responses={**_SWEEP, **BAD_BODY},
    openapi_extra={
        "requestBody": {"required": True, **content("SweepRequest", example=_EXAMPLE)},
        "parameters": [PREFER],
    },
)
async def submit(request: Request, service: ServiceOf) -> Response:
    """Plan a problem at every combination of memory limits, microbatches and placements.

    Each cell is a problem like one that is posted to `/v1/plans`, solved once whoever asks for it. `pareto` marks the
    cells that pay: with as many microbatches, none takes no longer and holds no more.
    """
    key = await service.sweeps.submit(await service.intake.json(request), request.state.caller)
    return await _table(key, request, service)


@router.get(
    "/v1/sweeps/{key}",
    summary="A table of plans",
    response_class=Response,
    responses={**_SWEEP, 304: {"description": "Nothing has changed."}, **NOT_FOUND},
    openapi_extra={"parameters": [PREFER]},
)
async def read(key: Key, request: Request, service: ServiceOf) -> Response:
    """Return what came of each cell so far; `Prefer: wait=N` holds the answer until all are final."""
    return await _table(key, request, service)


@router.delete(
    "/v1/sweeps/{key}",
    summary="Stop a sweep",
    response_class=Response,
    responses={**_SWEEP, **NOT_FOUND},
)
async def cancel(key: Key, request: Request, service: ServiceOf) -> Response:
    """Stop the solves of a sweep, whoever asked for them too; the best plans found until then stay."""
    await service.sweeps.cancel(key)
    return await _table(key, request, service)


async def _table(key: str, request: Request, service: ServiceOf) -> Response:
    wait_s = preferred_wait_s(request, service.settings.max_wait_s)
    table = await service.sweeps.table(key, wait_s)
    headers = {"Content-Location": f"/v1/sweeps/{key}"} | ({"Preference-Applied": f"wait={wait_s}"} if wait_s else {})
    return respond(request, table.representation, status=202 if table.under_way else 200, **headers)
