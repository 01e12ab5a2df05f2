"""OpenAPI: the description of the routes, with every document that goes over the wire."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any, Literal

from fastapi import FastAPI
from fastapi.openapi.utils import get_openapi
from pydantic.json_schema import models_json_schema

from api.desk import Judgement
from api.guard import OPEN, only_reads
from api.listing import Page
from api.profiles import PostedProfile
from api.readiness import Readiness
from api.refusal import MEDIA_TYPE, ErrorDocument
from api.resource import PlanResource
from api.sweeps import SweepRequest, SweepResource
from heuristic import construct
from zbplan.comparison import Comparison
from zbplan.plan import Plan
from zbplan.problem import Problem
from zbplan.profile import Profile
from zbplan.record import Record

_SCHEMAS = "#/components/schemas/"

_Described = list[tuple[type[Record], Literal["validation", "serialization"]]]
_RECEIVED: _Described = [(kind, "validation") for kind in (Problem, Profile, Plan, SweepRequest)]
_SENT: _Described = [
    (kind, "serialization")
    for kind in (PlanResource, Page, PostedProfile, SweepResource, Judgement, Comparison, Readiness, ErrorDocument)
]
_REFERENCE = {
    "type": "object",
    "description": "A profile that was posted, by name (the latest of it) or digest.",
    "properties": {"ref": {"type": "string"}},
    "required": ["ref"],
    "additionalProperties": False,
}

EXAMPLE_PROBLEM: dict[str, Any] = {
    "profile": {
        "stages": 8,
        "t_f_ms": 18.522,
        "t_b_ms": 18.086,
        "t_w_ms": 9.337,
        "t_comm_ms": 0.601,
        "m_b_bytes": 201216,
        "m_w_bytes": 73728,
    },
    "devices": 8,
    "microbatches": 24,
    "placement": "linear",
    "memory_limit": "1.0x",
    "optimizer": "synchronous",
    "method": "auto",
    "time_limit_s": 10,
}


def content(model: str, **more: Any) -> dict[str, Any]:
    """Return a JSON body that one of the described documents fills."""
    return {"content": {"application/json": {"schema": {"$ref": _SCHEMAS + model}, **more}}}


def refusals(**why: str) -> dict[int | str, dict[str, Any]]:
    """Return responses with problem details; names are like ``status_422``."""
    body = {MEDIA_TYPE: {"schema": {"$ref": _SCHEMAS + ErrorDocument.__name__}}}
    return {int(name.removeprefix("status_")): {"description": text, "content": body} for name, text in why.items()}


def describe(app: FastAPI) -> dict[str, Any]:
    """Return the OpenAPI document."""
    document = get_openapi(
        title=app.title, version=app.version, summary=app.summary, description=app.description, routes=app.routes
    )
    _, schemas = models_json_schema([*_RECEIVED, *_SENT], ref_template=_SCHEMAS + "{model}")
    described = document.setdefault("components", {}).setdefault("schemas", {})
    described.update(schemas["$defs"])
    document["components"]["securitySchemes"] = {"token": {"type": "http", "scheme": "bearer"}}
    document["security"] = [{"token": []}, {}]
    for path, method, operation in _operations(document):
        operation["responses"].update(_guarded(path, method))
    _body_of(document, "/v1/validate")["example"] = _example_plan()
    profile = described["Problem"]["properties"]["profile"]
    described["Problem"]["properties"]["profile"] = {"anyOf": [profile, _REFERENCE]}
    return document


def _operations(document: dict[str, Any]) -> Iterator[tuple[str, str, dict[str, Any]]]:
    for path, methods in document["paths"].items():
        for method, operation in methods.items():
            yield path, method.upper(), operation


def _guarded(path: str, method: str) -> dict[str, Any]:
    """Return what the guard may answer before a route is asked."""
    if path in OPEN:
        return {}
    forbidden = {} if only_reads(method, path) else {"status_403": "The token is one of those that only read."}
    found = refusals(
        status_401="A token is needed.",
        **forbidden,
        status_421="The service is not known by this name: `ZBPLAN_ALLOWED_HOSTS` says by which it is.",
    )
    return {str(status): answer for status, answer in found.items()}


def _body_of(document: dict[str, Any], path: str) -> dict[str, Any]:
    body: dict[str, Any] = document["paths"][path]["post"]["requestBody"]["content"]["application/json"]
    return body


def _example_plan() -> dict[str, Any]:
    problem = {**EXAMPLE_PROBLEM, "profile": {**EXAMPLE_PROBLEM["profile"], "stages": 2}, "devices": 2}
    return construct(Problem.parse({**problem, "microbatches": 2})).model_dump()
