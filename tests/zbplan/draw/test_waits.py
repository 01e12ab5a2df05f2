from __future__ import annotations

from tests.zbplan.test_graph import delayed, plan_of
from zbplan.draw.waits import MAX_GAPS, waits


def test_a_line_per_op_of_the_critical_path() -> None:
    assert [line.plain for line in waits(plan_of(2, 1))] == [
        "\ncritical path: 4 ops",
        "       0.000 ms  device 0  F(stage 0, microbatch 0): started at once",
        "      11.000 ms  device 1  F(stage 1, microbatch 0): input from F(stage 0, microbatch 0) on device 0"
        " + transfer 1 ms",
        "      21.000 ms  device 1  BW(stage 1, microbatch 0): device was busy with F(stage 1, microbatch 0)",
        "      37.000 ms  device 0  BW(stage 0, microbatch 0): input from BW(stage 1, microbatch 0) on device 1"
        " + transfer 1 ms",
    ]


def test_avoidable_gaps_are_listed_after_it() -> None:
    lines = [line.plain for line in waits(delayed(plan_of(4, 8), 3))]
    begin = lines.index("\navoidable gaps: 2 ops could start earlier, 6 ms in all")
    assert len(lines) == begin + 3 <= begin + MAX_GAPS
