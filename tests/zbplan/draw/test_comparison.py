from __future__ import annotations

import json

from rich.console import Console

from zbplan.draw.comparison import Comparison, Row
from zbplan.plan import Bound, Metrics


def metrics(iteration_ms: float) -> Metrics:
    rates = {"bubble_rate": 0.25, "mean_idle_rate": 0.3, "peak_bytes": [1000.0, 2500.0], "busy_ms": [1.0, 2.0]}
    return Metrics.parse({"iteration_ms": iteration_ms, "makespan_ms": iteration_ms + 1, **rates})


ROWS = [
    Row("gpipe", "gpipe", [[0], [1]], 0.5, why_not="takes too much"),
    Row("1f1b", "1f1b", [[0], [1]], 0.25, metrics(120.0)),
    Row("zb_h1", "zb_h1", [[0], [1]], 1.0, metrics(100.0)),
    Row("auto", "zb_h1", [[0], [1]], 2.0, metrics(100.0)),
]
COMPARISON = Comparison(ROWS, Bound.of(99.0, 100.0, "work"))


def test_json_is_sorted_and_marks_every_best_row() -> None:
    value = json.loads(json.dumps(COMPARISON.as_json(), allow_nan=False))
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


def test_table_fits_80_columns_and_says_why_not() -> None:
    console = Console(width=80)
    with console.capture() as capture:
        for part in COMPARISON.lines():
            console.print(part)
    lines = [line.rstrip() for line in capture.get().splitlines()]
    assert lines == [
        "          iteration  makespan                  built",
        "  method         ms        ms  bubble    peak  in ms  legal  placement",
        "* zb_h1     100.000   101.000   25.0%  2.5 kB    1.0  yes    linear",
        "* auto      100.000   101.000   25.0%  2.5 kB    2.0  yes    linear",
        "  1f1b      120.000   121.000   25.0%  2.5 kB    0.2  yes    linear",
        "  gpipe                                          0.5  no     linear",
        "* best",
        "",
        "bound 99 ms, gap 1.00%: work",
        "gpipe (linear) is not legal: takes too much",
    ]


def test_where_nothing_is_legal_nothing_is_best() -> None:
    rows = Comparison(ROWS[:1], Bound.of(0.0, 0.0, "none")).as_json()["rows"]
    assert [row["best"] for row in rows] == [False]
