from __future__ import annotations

from typing import Any

import pytest

from heuristic.one_f_one_b import one_f_one_b
from heuristic.zb_h1 import zb_h1
from heuristic.zb_h2 import zb_h2
from tests.heuristic.problems import linear, paper_problem, paper_rows
from zbplan.errors import MethodError
from zbplan.instance import KINDS, Instance, Orders
from zbplan.problem import Problem
from zbplan.simulate import measure, simulate

ROWS = [pytest.param(row, id=f"{row['model']}-m{row['microbatches']}") for row in paper_rows()]


def bubble(instance: Instance, orders: Orders) -> float:
    return measure(instance, simulate(instance, orders)).bubble_rate


def text(instance: Instance, orders: Orders, device: int) -> str:
    return " ".join(f"{KINDS[k]}{j}" for k, _, j in map(instance.split, orders.on(device).tolist()))


@pytest.mark.parametrize("row", ROWS)
def test_1f1b_has_the_bubble_of_table_5_by_makespan(row: dict[str, Any]) -> None:
    instance = paper_problem(row, optimizer="synchronous").instance()
    assert bubble(instance, one_f_one_b(instance)) == pytest.approx(row["bubble_rate"]["1F1B"], abs=0.001)


@pytest.mark.parametrize("row", ROWS)
def test_zb_h1_has_the_bubble_of_table_5_by_makespan(row: dict[str, Any]) -> None:
    instance = paper_problem(row, optimizer="synchronous").instance()
    assert bubble(instance, zb_h1(instance)) == pytest.approx(row["bubble_rate"]["ZB-H1"], abs=0.001)


@pytest.mark.parametrize("row", ROWS)
def test_zb_h2_has_the_bubble_of_table_5_by_longest_device_span(row: dict[str, Any]) -> None:
    instance = paper_problem(row, optimizer="post_validated").instance()
    assert bubble(instance, zb_h2(instance)) == pytest.approx(row["bubble_rate"]["ZB-H2"], abs=0.001)


def test_orders_are_those_of_the_papers_figures() -> None:
    instance = linear(4, 8, 1, 1, 1).instance()
    assert text(instance, one_f_one_b(instance), 2) == (
        "F0 F1 BW0 F2 BW1 F3 BW2 F4 BW3 F5 BW4 F6 BW5 F7 BW6 BW7"  # figure 2
    )
    assert text(instance, zb_h1(instance), 3) == (
        "F0 B0 F1 B1 F2 B2 F3 B3 W0 F4 B4 W1 F5 B5 W2 F6 B6 W3 F7 B7 W4 W5 W6 W7"  # figure 3, top
    )
    assert text(instance, zb_h2(instance), 0) == (
        "F0 F1 F2 F3 F4 F5 F6 B0 W0 F7 B1 W1 B2 W2 B3 W3 B4 W4 B5 W5 B6 W6 B7 W7"  # figure 3, bottom
    )


def test_equal_times_give_the_closed_forms_of_table_2() -> None:
    p, m = 4, 12
    problem = linear(p, m, 1, 1, 1, m_b_bytes=2, m_w_bytes=1, optimizer="post_validated")
    instance = problem.instance()
    unit = instance.clock.units(1)
    h1, h2 = (measure(instance, simulate(instance, build(instance))) for build in (zb_h1, zb_h2))
    assert h1.iteration == (3 * m + (p - 1)) * unit  # (p - 1)(T_F + T_B - T_W) of bubble
    assert h2.iteration == 3 * m * unit  # (p - 1)(T_F + T_B - 2 T_W) of bubble
    m_b, m_w = instance.memory.units(2), instance.memory.units(1)
    assert h1.peak.tolist() == [(p - i) * m_b + i * m_w for i in range(p)]
    assert h2.peak.tolist() == [(2 * p - 2 * i - 1) * m_b + 2 * i * m_w for i in range(p)]


def test_a_stage_that_cannot_split_runs_bw_in_place_of_b_and_w() -> None:
    instance = linear(2, 3, 1, 1, 1, splittable=[False, True]).instance()
    orders = zb_h1(instance)
    assert text(instance, orders, 0) == "F0 F1 BW0 F2 BW1 BW2"
    assert text(instance, orders, 1) == "F0 B0 F1 B1 W0 F2 B2 W1 W2"


@pytest.mark.parametrize("build", [one_f_one_b, zb_h1, zb_h2])
def test_several_stages_per_device_are_refused_by_name(build: Any) -> None:
    profile = {"stages": 4, "t_f_ms": 1, "t_b_ms": 1, "t_w_ms": 1, "t_comm_ms": 0, "m_b_bytes": 1, "m_w_bytes": 1}
    problem = Problem.parse({"profile": profile, "devices": 2, "microbatches": 4, "placement": "v"})
    with pytest.raises(MethodError, match=r"one stage per device.*device 0 holds stages 0, 3"):
        build(problem.instance())
