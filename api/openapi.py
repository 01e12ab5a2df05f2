"""OpenAPI: the description of the routes, with every document that goes over the wire."""

from __future__ import annotations

from typing import Any

from fastapi import FastAPI
from fastapi.openapi.utils import get_openapi
from pydantic.json_schema import models_json_schema

from api.refusal import MEDIA_TYPE, ErrorDocument
from api.resource import PlanResource
from zbplan.problem import Problem

_SCHEMAS = "#/components/schemas/"

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
    _, schemas = models_json_schema(
        [(Problem, "validation"), (PlanResource, "serialization"), (ErrorDocument, "serialization")],
        ref_template=_SCHEMAS + "{model}",
    )
    document.setdefault("components", {}).setdefault("schemas", {}).update(schemas["$defs"])
    return document
