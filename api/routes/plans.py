"""Plans: asking for one, reading and following it, stopping its solve."""

from __future__ import annotations

import re
from typing import Annotated, Any

from fastapi import APIRouter, Header, Path, Query, Request, Response
from fastapi.responses import StreamingResponse

from api.catalog import Shown
from api.listing import Wanted
from api.openapi import EXAMPLE_PROBLEM, content, refusals
from api.requests import has, preferred_wait_s
from api.routes.common import BAD_BODY, BAD_QUERY, NOT_FOUND, ServiceOf, json_response, respond, service_of

router = APIRouter()

IMMUTABLE = "public, max-age=31536000, immutable"

_EVENT_ID = re.compile(r"\d{1,18}")

Key = Annotated[str, Path(description="The key of a problem, as every answer and plan gives it.")]

_RESOURCE: dict[int | str, dict[str, Any]] = {
    200: {"description": "The plan is final.", **content("PlanResource")},
    202: {"description": "The solve goes on; `plan` is the best one so far.", **content("PlanResource")},
}
PREFER = {
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
    responses={**_RESOURCE, **BAD_BODY, **refusals(status_429="The token's share of the queue is used up.")},
    openapi_extra={
        "requestBody": {"required": True, **content("Problem", example=EXAMPLE_PROBLEM)},
        "parameters": [PREFER],
    },
)
async def submit(request: Request, service: ServiceOf) -> Response:
    """Store a problem and solve it, once: the same problem has the same key and the same answer.

    With `Prefer: wait=N` the answer is held until the plan is final, for at most N seconds.
    """
    shown = await service.submit(await service.intake.json(request), request.state.caller)
    wait_s = preferred_wait_s(request, service.settings.max_wait_s)
    if wait_s:
        shown = await service.wait(shown.job.key, lambda now: not now.under_way, wait_s)
    return _resource(request, shown, wait_s)


@router.get(
    "/v1/plans/{key}",
    summary="The best plan so far for a problem",
    response_class=Response,
    responses={**_RESOURCE, 304: {"description": "Nothing has changed."}, **NOT_FOUND},
    openapi_extra={"parameters": [PREFER]},
)
async def read(key: Key, request: Request) -> Response:
    """Return the resource of a problem.

    With `Prefer: wait=N` the answer is held until the plan is final, or, with `If-None-Match`, until it is another
    one than the client has, for at most N seconds.
    """
    service = service_of(request)
    wait_s = preferred_wait_s(request, service.settings.max_wait_s)
    conditional = "if-none-match" in request.headers

    def news(shown: Shown) -> bool:
        return not shown.under_way or (conditional and not has(request, shown.representation.etag))

    shown = await (service.wait(key, news, wait_s) if wait_s else service.read(key))
    return _resource(request, shown, wait_s)


@router.delete(
    "/v1/plans/{key}",
    summary="Stop a solve",
    response_class=Response,
    responses={200: {"description": "The best plan found until then stays.", **content("PlanResource")}, **NOT_FOUND},
)
async def cancel(key: Key, request: Request, service: ServiceOf) -> Response:
    """Stop the solve of a problem and keep its best plan; a POST of the problem takes it up again."""
    return _resource(request, await service.cancel(key), 0)


@router.get(
    "/v1/plans/by-id/{plan_id}",
    summary="One plan, for ever the same",
    response_class=Response,
    responses={
        200: {"description": "The plan.", **content("Plan")},
        304: {"description": "The client has it."},
        **NOT_FOUND,
    },
)
async def read_plan(
    plan_id: Annotated[str, Path(description="A `plan_id`.")], request: Request, service: ServiceOf
) -> Response:
    """Return a plan by the id of its schedule."""
    return respond(request, await service.plan(plan_id), caching=IMMUTABLE)


@router.get(
    "/v1/plans/{key}/events",
    summary="What a solve finds",
    response_class=Response,
    responses={
        200: {
            "description": "Server-sent events: `incumbent` (a better plan), `bound` (a better bound), `done`.",
            "content": {"text/event-stream": {"schema": {"type": "string"}}},
        },
        **NOT_FOUND,
    },
)
async def follow(
    key: Key,
    request: Request,
    service: ServiceOf,
    last_event_id: Annotated[str | None, Header(description="Goes on after this event.")] = None,
) -> Response:
    """Follow the solve of a problem, from its last state, or from the last event that a listener got, to its end."""
    after = int(last_event_id) if last_event_id is not None and _EVENT_ID.fullmatch(last_event_id) else None
    events = await service.follow(key, after)
    # Who asks for the head only gets it at once, and takes no listener's place until the solve ends.
    return StreamingResponse(
        [] if request.method == "HEAD" else events,
        media_type="text/event-stream",
        headers={"Cache-Control": "no-store"},
    )


@router.get(
    "/v1/plans",
    summary="All problems",
    response_class=Response,
    responses={200: {"description": "The last submitted first.", **content("Page")}, **BAD_QUERY},
)
async def page(service: ServiceOf, wanted: Annotated[Wanted, Query()]) -> Response:
    """List problems to which all that is asked for applies, the last submitted first.

    While problems are added, what a cursor leads to stays the same.
    """
    return json_response(await service.page(wanted))


def _resource(request: Request, shown: Shown, wait_s: int) -> Response:
    headers = {"Content-Location": f"/v1/plans/{shown.job.key}"}
    if wait_s:
        headers["Preference-Applied"] = f"wait={wait_s}"
    return respond(request, shown.representation, status=202 if shown.under_way else 200, **headers)
