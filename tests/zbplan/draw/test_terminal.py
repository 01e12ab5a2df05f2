from __future__ import annotations

import re
from itertools import pairwise
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from rich.text import Text

from heuristic import construct
from tests.strategies import problems, random_orders
from zbplan.draw.terminal import LETTERS, STYLES, chart
from zbplan.plan import Plan
from zbplan.problem import Problem

PLACEMENTS = ("linear", "v", "interleaved")


def plan_of(devices: int, microbatches: int, *, stages: int | None = None, **changes: Any) -> Plan:
    profile = {"stages": stages or devices, "t_f_ms": 10, "t_b_ms": 10, "t_w_ms": 5, "t_comm_ms": 1}
    profile |= {"m_b_bytes": 2000, "m_w_bytes": 1000} | changes.pop("profile", {})
    return construct(Problem.parse({"profile": profile, "devices": devices, "microbatches": microbatches, **changes}))


def drawn(plan: Plan, width: int = 80, **stretch: float) -> list[str]:
    return [line.plain for line in chart(plan, width=width, **stretch)]


def rows(lines: list[str]) -> list[str]:
    """Return what stands between the bars of each row."""
    return [match[1] for line in lines if (match := re.match(r" *\d+ \|(.*)\|", line))]


def test_a_small_plan_is_drawn_op_by_op() -> None:
    plan = plan_of(2, 2, method="1f1b", profile={"t_comm_ms": 0, "t_bw_ms": 20})
    lines = drawn(plan, width=89)
    assert lines[-6:] == [
        f"{'':77}  peak  idle",
        "0 |F0------F1------                X0--------------        X1--------------| 4.0 kB 33.3%",
        "1 |        F0------X0--------------F1------X1--------------                | 2.0 kB 33.3%",
        "   |0              |20             |40             |60             |80      ms",
        "F forward  X BW (both)  # mixed  blank idle",
        "a column is 1.25 ms",
    ]


def test_the_header_says_objective_bubble_bound_and_limit() -> None:
    plan = plan_of(2, 2, method="1f1b", memory_limit=[5000, 9000]).with_bound(75.0, "because")
    assert drawn(plan)[:4] == [
        "1f1b: 2 devices x 2 microbatches, linear",
        "iteration 77 ms (makespan), bubble 35.1%, mean idle 35.1%",
        "bound 75 ms, gap 2.60%: because",
        "memory limit 5.0 kB to 9.0 kB per device",
    ]


@pytest.mark.parametrize("devices", [8, 64])
def test_a_chart_fits_its_width_with_a_row_per_device(devices: int) -> None:
    plan = plan_of(devices, 3 * devices, memory_limit="1x")
    lines = drawn(plan)
    assert max(map(len, lines)) <= 80
    bands = len(rows(lines)) // devices
    assert len(rows(lines)) == bands * devices
    assert len(lines) <= max(48, devices + 1) + 8
    assert len({len(row) for row in rows(lines)}) == 1


def test_eight_devices_with_24_microbatches_show_every_kind_and_no_mixture() -> None:
    plan = plan_of(8, 24, memory_limit="1x", method="zb_h1")
    lines = drawn(plan)
    assert "too short" not in lines[-1]
    assert all("#" not in row for row in rows(lines))
    for device in range(8):
        whole = "".join(rows(lines)[device::8])
        assert [whole.count(letter) for letter in "FBW"] == [24, 24, 24]


def test_too_many_ops_are_drawn_as_mixed_and_said_to_be_hidden() -> None:
    lines = drawn(plan_of(16, 200, memory_limit="1x", method="zb_h1"))
    middle = rows(lines)[8][30]
    assert middle == "#"
    assert re.fullmatch(r"\d+ of 9600 ops are too short to show: --from-ms and --to-ms draw a part", lines[-1])


def test_letters_tell_apart_what_colours_do() -> None:
    plan = plan_of(2, 4, stages=4, placement="v", method="heuristic", profile={"splittable": [True, False, True, True]})
    kinds = {kind for ops in plan.devices for kind in ops.kind}
    assert kinds == set(LETTERS)
    text = Text("\n").join(chart(plan, width=200))
    painted = {text.plain[span.start : span.end][0]: str(span.style) for span in text.spans if span.style != "dim"}
    for kind, letter in LETTERS.items():
        assert painted.get(letter, STYLES[kind]) == painted.get(letter.lower(), STYLES[kind]) == STYLES[kind]
    assert "small letters: a device's later stages" in text.plain


def test_a_part_is_drawn_larger() -> None:
    plan = plan_of(2, 8, method="zb_h1")
    (row, _) = rows(drawn(plan, from_ms=20.0, to_ms=21.0))
    assert set(row[1:]) <= {"-", " "}
    assert drawn(plan, from_ms=-5.0, to_ms=1e9) == drawn(plan)


def test_a_plan_that_takes_no_time_is_drawn() -> None:
    plan = plan_of(2, 2, profile={"t_f_ms": 0, "t_b_ms": 0, "t_w_ms": 0, "t_comm_ms": 0})
    assert [set(row) for row in rows(drawn(plan))] == [{" "}, {" "}]


@settings(deadline=None)
@given(problems(placements=PLACEMENTS), st.integers(0, 1 << 16), st.integers(60, 200))
def test_any_plan_is_drawn_in_the_width(problem: Problem, seed: int, width: int) -> None:
    plan = Plan.build(problem, problem.placements[0], random_orders(problem.instance(), seed), method="random")
    lines = drawn(plan, width)
    begin = next(number for number, line in enumerate(lines) if line.endswith("idle"))
    end = next(number for number, line in enumerate(lines) if line.endswith("blank idle"))
    assert max(map(len, lines[begin:end])) <= width
    assert lines == drawn(plan, width)


@pytest.mark.parametrize("exponent", [-5, -2, 3, 9])
def test_the_axis_stays_readable_at_any_scale(exponent: int) -> None:
    scale = 10.0**exponent
    times = {"t_f_ms": 12 * scale, "t_b_ms": 10 * scale, "t_w_ms": 5 * scale, "t_comm_ms": 0}
    axis = next(line for line in drawn(plan_of(2, 2, profile=times)) if line.endswith(" ms") and "|0" in line)
    ticks = [float(tick) for tick in re.findall(r"\|(\S+)", axis)]
    steps = {round((after - before) / ticks[1], 6) for before, after in pairwise(ticks)}
    assert 3 <= len(ticks) <= 8
    assert steps == {1}
