"""The description of the routes, held against a running service by generated requests, good and bad."""

from __future__ import annotations

from typing import Any

import pytest
import schemathesis
from hypothesis import HealthCheck, given, settings
from schemathesis import GenerationMode
from schemathesis.checks import not_a_server_error
from schemathesis.specs.openapi.checks import (
    content_type_conformance,
    response_schema_conformance,
    status_code_conformance,
)

from api.app import create_app
from api.settings import Settings
from tests.api.servers import Server

CHECKS = [not_a_server_error, status_code_conformance, content_type_conformance, response_schema_conformance]
DESCRIBED = schemathesis.openapi.from_dict(create_app(Settings.parse({})).openapi())
OPERATIONS = [found.ok() for found in DESCRIBED.get_all_operations()]
ASKED = [
    pytest.param(operation, mode, id=f"{operation.label} {mode.value}")
    for operation in OPERATIONS
    for mode in GenerationMode
    # Every text is a path, so that nothing can be wrong where there is neither a body nor a query.
    if mode is GenerationMode.POSITIVE or list(operation.body) or list(operation.query)
]


@pytest.mark.parametrize(("operation", "mode"), ASKED)
def test_whatever_is_asked_is_answered_as_described(server: Server, operation: Any, mode: GenerationMode) -> None:
    @settings(max_examples=8, deadline=None, derandomize=True, suppress_health_check=list(HealthCheck))
    @given(case=operation.as_strategy(generation_mode=mode))
    def ask(case: Any) -> None:
        case.call_and_validate(base_url=server.url, checks=CHECKS)

    ask()
