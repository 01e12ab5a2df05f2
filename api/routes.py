"""Routes: the HTTP face of the service."""

from __future__ import annotations

from typing import Annotated, Any

from fastapi import APIRouter, Depends, Path, Request, Response

from api.catalog import Shown
from api.openapi import EXAMPLE_PROBLEM, content, refusals
from api.requests import has, json_body, preferred_wait_s
from api.resource import Representation
from api.service import Service

router = APIRouter()

IMMUTABLE = "public, max-age=31536000, immutable"


async def _service(request: Request) -> Service:
    service: Service = request.app.state.service
    return service


ServiceOf = Annotated[Service, Depends(_service)]
Key = Annotated[str, Path(description="The key of a problem, as every answer and plan gives it.")]

_RESOURCE: dict[int | str, dict[str, Any]] = {
    200: {"description": "The plan is final.", **content("PlanResource")},
    202: {"description": "The solve goes on; `plan` is the best one so far.", **content("PlanResource")},
}
_NO_PLAN = refusals(status_404="There is no such plan.", status_503="The service cannot answer now.")
_PREFER = {
    "name": "Prefer",
    "in": "header",
    "required": False,
    "schema": {"type": "string", "examples": ["wait=10"]},
    "description": "`wait=N` (RFC 7240) holds the answer for up to N seconds.",
}


@router.post(
    "/v1/plans",
    summary="Ask for a plan",
    response_class=Response,
    status_code=202,
    responses={
        **_RESOURCE,
        **refusals(
            status_413="The body is too large.",
            status_415="The body is not declared as JSON.",
            status_422="The body is no problem, or one without a plan: `errors` says where and what is needed.",
            status_503="The service cannot answer now.",
        ),
    },
    openapi_extra={
        "requestBody": {"required": True, **content("Problem", example=EXAMPLE_PROBLEM)},
        "parameters": [_PREFER],
    },
)
async def submit(request: Request, service: ServiceOf) -> Response:
    """Store a problem and solve it, once: the same problem has the same key and the same answer.

    With `Prefer: wait=N` the answer is held until the plan is final, for at most N seconds.
    """
    shown = await service.submit(await json_body(request, service.settings.max_body_bytes))
    wait_s = preferred_wait_s(request, service.settings.max_wait_s)
    if wait_s:
        shown = await service.wait(shown.job.key, lambda now: not now.under_way, wait_s)
    return _resource(shown, wait_s)


@router.get(
    "/v1/plans/{key}",
    summary="The best plan so far for a problem",
    response_class=Response,
    responses={**_RESOURCE, 304: {"description": "Nothing has changed."}, **_NO_PLAN},
    openapi_extra={"parameters": [_PREFER]},
)
async def read(key: Key, request: Request, service: ServiceOf) -> Response:
    """Return the resource of a problem.

    With `Prefer: wait=N` the answer is held until the plan is final, or, with `If-None-Match`, until it is another
    one than the client has, for at most N seconds.
    """
    wait_s = preferred_wait_s(request, service.settings.max_wait_s)
    conditional = "if-none-match" in request.headers

    def news(shown: Shown) -> bool:
        return not shown.under_way or (conditional and not has(request, shown.representation.etag))

    shown = await (service.wait(key, news, wait_s) if wait_s else service.read(key))
    if conditional and has(request, shown.representation.etag):
        return Response(status_code=304, headers=_validators(shown.representation, "no-cache"))
    return _resource(shown, wait_s)


@router.delete(
    "/v1/plans/{key}",
    summary="Stop a solve",
    response_class=Response,
    responses={200: {"description": "The best plan found until then stays.", **content("PlanResource")}, **_NO_PLAN},
)
async def cancel(key: Key, service: ServiceOf) -> Response:
    """Stop the solve of a problem and keep its best plan; a POST of the problem takes it up again."""
    return _resource(await service.cancel(key), 0)


@router.get(
    "/v1/plans/by-id/{plan_id}",
    summary="One plan, for ever the same",
    response_class=Response,
    responses={
        200: {"description": "The plan.", **content("Plan")},
        304: {"description": "The client has it."},
        **_NO_PLAN,
    },
)
async def read_plan(
    plan_id: Annotated[str, Path(description="A `plan_id`.")], request: Request, service: ServiceOf
) -> Response:
    """Return a plan by the id of its schedule."""
    plan = await service.plan(plan_id)
    headers = _validators(plan, IMMUTABLE)
    if has(request, plan.etag):
        return Response(status_code=304, headers=headers)
    return Response(plan.body, media_type="application/json", headers=headers)


@router.get("/healthz", summary="Whether the process is alive")
async def health() -> dict[str, str]:
    """Answer."""
    return {"status": "ok"}


def _resource(shown: Shown, wait_s: int) -> Response:
    headers = {**_validators(shown.representation, "no-cache"), "Content-Location": f"/v1/plans/{shown.job.key}"}
    if wait_s:
        headers["Preference-Applied"] = f"wait={wait_s}"
    status = 202 if shown.under_way else 200
    return Response(shown.representation.body, status, headers, media_type="application/json")


def _validators(representation: Representation, caching: str) -> dict[str, str]:
    return {"ETag": representation.etag, "Cache-Control": caching}
