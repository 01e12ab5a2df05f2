from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest

from tests.runtime_client.plans import zb_h1
from tests.zbplan.traces import as_planned
from zbplan.errors import InvalidInputError
from zbplan.trace import Span, Trace

TRACE = as_planned(zb_h1(2, 3), steps=2)

Damage = Callable[[dict[str, Any]], Any]


def column(name: str) -> Callable[[dict[str, Any]], list[Any]]:
    return lambda value: value["steps"][1]["devices"][0][name]


def put(name: str, at: int, entry: Any) -> Damage:
    return lambda value: column(name)(value).__setitem__(at, entry)


def test_it_survives_its_text() -> None:
    assert Trace.parse_json(TRACE.to_json()) == TRACE


def test_ops_are_the_rows_that_are_no_transfers() -> None:
    device = TRACE.steps[0].devices[1]
    assert len(device.spans()) == len(device.ops()) + 6
    assert {span.kind for span in device.ops()} == {"F", "B", "W"}
    assert str(device.ops()[0]) == "F(stage 1, microbatch 0)"
    assert isinstance(device.spans()[0], Span)


@pytest.mark.parametrize(
    ("damage", "path", "found", "needed"),
    [
        (put("kind", 0, "R"), ".kind[0]", "'R'", "one of F, B, W, BW, SEND_F, RECV_F, SEND_B, RECV_B"),
        (put("end_ms", 0, 0.5), ".end_ms[0]", "0.5", "1, its start, or later"),
        (put("stage", 0, -1), ".stage[0]", "-1", "greater than or equal to 0"),
        (put("start_ms", 0, float("nan")), ".start_ms[0]", "nan", "a finite number"),
        (lambda value: column("stage")(value).pop(), "", "{'kind': ", "columns of one length"),
    ],
)
def test_what_is_wrong_with_a_row_is_named_with_its_path(damage: Damage, path: str, found: str, needed: str) -> None:
    value = TRACE.model_dump()
    column("start_ms")(value)[0] = 1.0
    damage(value)
    with pytest.raises(InvalidInputError) as caught:
        Trace.parse(value)
    finding = next(each for each in caught.value.findings if each.path == f"$.steps[1].devices[0]{path}")
    assert finding.found.startswith(found)
    assert finding.needed.startswith(needed)


def test_every_device_needs_a_clock() -> None:
    value = TRACE.model_dump()
    value["clock_error_ms"].append(0.0)
    with pytest.raises(InvalidInputError, match=r"\$\.steps\[0\]\.devices: found 2 devices; needed 3, one per clock"):
        Trace.parse(value)


def test_a_trace_without_steps_is_refused() -> None:
    with pytest.raises(InvalidInputError, match=r"\$\.steps: found"):
        Trace.parse(TRACE.model_dump() | {"steps": []})


def test_what_is_no_json_in_its_environment_is_named_with_its_path() -> None:
    with pytest.raises(InvalidInputError, match=r"\$\.environment\.a\[0\]: found nan; needed JSON with finite numbers"):
        Trace.parse(TRACE.model_dump() | {"environment": {"a": [float("nan")]}})
