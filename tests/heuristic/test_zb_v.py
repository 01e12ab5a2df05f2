from __future__ import annotations

from typing import Any

import pytest

from heuristic.zb_v import zb_v
from tests.heuristic.problems import equal_times, linear, published_rows
from zbplan.errors import MethodError
from zbplan.problem import Problem
from zbplan.simulate import measure, simulate

ROWS = [pytest.param(row, id=row["id"]) for row in published_rows() if "ZB-V" in row["id"]]


@pytest.mark.parametrize("row", ROWS)
def test_span_is_the_published_one(row: dict[str, Any]) -> None:
    instance = Problem.parse(row["problem"]).instance()
    measures = measure(instance, simulate(instance, zb_v(instance)))
    assert instance.clock.value(measures.iteration) == pytest.approx(row["published"]["span_ms"], abs=0.001)
    assert (measures.peak <= instance.room).all()


@pytest.mark.parametrize("p", [2, 4, 8])
def test_equal_times_leave_no_bubble_in_what_1f1b_holds(p: int) -> None:
    problem = equal_times("v", p, 2 * p, 4 * p, memory_limit=2 * p, optimizer="post_validated")
    instance = problem.instance()
    measures = measure(instance, simulate(instance, zb_v(instance)))
    assert measures.iteration == instance.clock.units(6 * 4 * p)


@pytest.mark.parametrize(("devices", "microbatches"), [(1, 1), (1, 4), (2, 1), (4, 2), (5, 3), (3, 9)])
def test_few_devices_and_microbatches_work(devices: int, microbatches: int) -> None:
    instance = equal_times("v", devices, 2 * devices, microbatches).instance()
    assert measure(instance, simulate(instance, zb_v(instance))).busy.tolist() == [6 * microbatches * 10**6] * devices


def test_a_limit_below_its_warm_up_is_refused_by_name() -> None:
    problem = equal_times("v", 4, 8, 8, memory_limit=3)
    with pytest.raises(MethodError, match="warm-up and one F beside each B do not fit"):
        zb_v(problem.instance())


def test_other_placements_are_refused_by_name() -> None:
    with pytest.raises(MethodError, match="V placement; device 0 holds stage 0, not stages 0, 7"):
        zb_v(linear(4, 8, 1, 1, 1).instance())
