from __future__ import annotations

from typing import Any

import pytest

from heuristic.v_half import v_half
from heuristic.v_min import v_min
from tests.heuristic.problems import equal_times, linear, published_rows
from zbplan.errors import MethodError
from zbplan.instance import BW, F
from zbplan.problem import Problem
from zbplan.simulate import measure, simulate

DEVICES = (1, 2, 3, 4, 5, 6, 7, 8, 9, 16, 17, 23, 24)


@pytest.mark.parametrize("p", DEVICES)
def test_v_min_holds_a_third_at_equal_times(p: int) -> None:
    instance = equal_times("v", p, 2 * p, 3 * p).instance()
    measures = measure(instance, simulate(instance, v_min(instance)))
    assert measures.peak.max() == 2 * ((p + 4) // 3)
    assert measures.makespan <= instance.clock.units(6 * 3 * p + 4 * p)  # about 2p / 3m of bubble


@pytest.mark.parametrize("p", DEVICES)
def test_v_half_holds_half_at_equal_times(p: int) -> None:
    instance = equal_times("v", p, 2 * p, 3 * p).instance()
    measures = measure(instance, simulate(instance, v_half(instance)))
    assert measures.peak.max() == 2 * ((p + 2) // 2)
    assert measures.makespan <= instance.clock.units(6 * 3 * p + 3 * p)  # about p / 2m of bubble


@pytest.mark.parametrize("row", [row for row in published_rows() if "V-Min" in row["id"] or "V-Half" in row["id"]])
def test_span_is_the_published_one(row: dict[str, Any]) -> None:
    build = v_min if "V-Min" in row["id"] else v_half
    instance = Problem.parse(row["problem"]).instance()
    measures = measure(instance, simulate(instance, build(instance)))
    assert (measures.peak <= instance.room).all()
    assert instance.clock.value(measures.iteration) == pytest.approx(row["published"]["span_ms"], abs=0.001)


@pytest.mark.parametrize("build", [v_min, v_half])
@pytest.mark.parametrize(("devices", "microbatches"), [(1, 1), (1, 4), (2, 1), (4, 2), (5, 3)])
def test_few_devices_and_microbatches_work(build: Any, devices: int, microbatches: int) -> None:
    instance = equal_times("v", devices, 2 * devices, microbatches).instance()
    assert measure(instance, simulate(instance, build(instance))).busy.tolist() == [6 * microbatches * 10**6] * devices


@pytest.mark.parametrize("build", [v_min, v_half])
def test_a_stage_that_cannot_split_runs_bw(build: Any) -> None:
    ones = dict.fromkeys(("t_f_ms", "t_b_ms", "t_w_ms", "t_comm_ms", "m_b_bytes", "m_w_bytes"), 1)
    profile = {"stages": 4, **ones, "splittable": [True, False, True, True]}
    instance = Problem.parse({"profile": profile, "devices": 2, "microbatches": 3, "placement": "v"}).instance()
    kinds = {instance.split(op)[:2] for op in build(instance).ops.tolist()}
    assert {kind for kind, stage in kinds if stage == 1} == {F, BW}


@pytest.mark.parametrize("build", [v_min, v_half])
def test_other_placements_are_refused_by_name(build: Any) -> None:
    with pytest.raises(MethodError, match="V placement; device 0 holds stage 0, not stages 0, 7"):
        build(linear(4, 8, 1, 1, 1).instance())
