"""Health: for those who watch over the process."""

from __future__ import annotations

from fastapi import APIRouter, Request, Response
from prometheus_client import CONTENT_TYPE_LATEST

from api.asking import read
from api.openapi import content, refusals
from api.routes.common import ServiceOf, json_response

router = APIRouter()


@router.get("/healthz", summary="Whether the process is alive")
async def alive() -> dict[str, str]:
    """Answer."""
    return {"status": "ok"}


@router.get(
    "/readyz",
    summary="Whether all parts work",
    response_class=Response,
    responses={
        200: {"description": "Plans are made and served.", **content("Readiness")},
        **refusals(status_503="They are not: `errors` names the parts that do not work."),
    },
)
async def ready(service: ServiceOf) -> Response:
    """Try every part: the store, the workers, the solvers."""
    return json_response(await service.readiness())


@router.get(
    "/metrics",
    summary="Counts for Prometheus",
    response_class=Response,
    responses={200: {"description": "The text exposition.", "content": {"text/plain": {"schema": {"type": "string"}}}}},
)
async def metrics(request: Request) -> Response:
    """Count requests of this process, and jobs and solves of all that share its store."""
    metrics, tally = request.app.state.metrics, request.app.state.tally
    jobs, finished = await read(lambda: (tally.counts(), tally.finished()))
    metrics.jobs(jobs)
    for solve in finished:
        metrics.finished(solve)
    return Response(metrics.text(), media_type=CONTENT_TYPE_LATEST)
