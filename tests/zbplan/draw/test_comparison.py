from __future__ import annotations

from rich.console import Console

from tests.zbplan.test_comparison import COMPARISON, metrics
from zbplan.comparison import Comparison, Row
from zbplan.draw.comparison import lines
from zbplan.plan import Bound


def test_table_fits_80_columns_and_says_why_not() -> None:
    console = Console(width=80)
    with console.capture() as capture:
        for part in lines(COMPARISON):
            console.print(part)
    shown = [line.rstrip() for line in capture.get().splitlines()]
    assert shown == [
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


def test_the_cut_of_open_layers_is_told_for_each_placement() -> None:
    cut = {"metrics": metrics(100.0), "build_ms": 1.0}
    rows = [
        Row(method="zb_v", made_by="zb_v", placement=[[0, 3], [1, 2]], starts=[0, 2, 3, 5], **cut),
        Row(method="auto", made_by="planner", placement=[[0, 2], [1, 3]], starts=[0, 1, 3, 5], **cut),
        Row(method="gpipe", made_by="gpipe", placement=[[0, 2], [1, 3]], starts=[0, 1, 3, 5], **cut),
    ]
    console = Console(width=80)
    with console.capture() as capture:
        for part in lines(Comparison.of("0", rows, Bound.of(99.0, 100.0, "work"))):
            console.print(part)
    shown = [line.rstrip() for line in capture.get().splitlines()]
    assert [line.split()[-1] for line in shown[2:5]] == ["v", "x2", "x2"]
    assert shown[-2:] == ["v: stages begin at layers 0 2 3 5", "interleaved x2: stages begin at layers 0 1 3 5"]
