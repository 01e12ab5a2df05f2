from __future__ import annotations

from rich.console import Console

from tests.zbplan.test_comparison import COMPARISON
from zbplan.draw.comparison import lines


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
