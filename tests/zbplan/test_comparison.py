from __future__ import annotations

import json
from typing import Any

from zbplan.comparison import Comparison, Row
from zbplan.plan import Bound, Metrics


def metrics(iteration_ms: float) -> Metrics:
    rates = {"bubble_rate": 0.25, "mean_idle_rate": 0.3, "peak_bytes": [1000.0, 2500.0], "busy_ms": [1.0, 2.0]}
    return Metrics.parse({"iteration_ms": iteration_ms, "makespan_ms": iteration_ms + 1, **rates})


def row(method: str, made_by: str, build_ms: float, **outcome: Any) -> Row:
    return Row(method=method, made_by=made_by, placement=[[0], [1]], build_ms=build_ms, **outcome)


ROWS = [
    row("gpipe", "gpipe", 0.5, why_not="takes too much"),
    row("1f1b", "1f1b", 0.25, metrics=metrics(120.0)),
    row("zb_h1", "zb_h1", 1.0, metrics=metrics(100.0)),
    row("auto", "zb_h1", 2.0, metrics=metrics(100.0)),
]
COMPARISON = Comparison.of("0", ROWS, Bound.of(99.0, 100.0, "work"))


def test_json_is_sorted_and_marks_every_best_row() -> None:
    value = json.loads(COMPARISON.to_json())
    listed = [(row["method"], row["made_by"], row["legal"], row["best"]) for row in value["rows"]]
    assert listed == [
        ("zb_h1", "zb_h1", True, True),
        ("auto", "zb_h1", True, True),
        ("1f1b", "1f1b", True, False),
        ("gpipe", "gpipe", False, False),
    ]
    assert value["rows"][0]["metrics"]["peak_bytes"] == [1000.0, 2500.0]
    assert value["rows"][-1]["why_not"] == "takes too much"
    assert value["bound"]["gap"] == Bound.of(99.0, 100.0, "").gap


def test_where_nothing_is_legal_nothing_is_best() -> None:
    rows = Comparison.of("0", ROWS[:1], Bound.of(0.0, 0.0, "none")).rows
    assert [row.best for row in rows] == [False]
