from __future__ import annotations

from typing import Any

import pytest

from heuristic.one_f_one_b_v import one_f_one_b_v
from tests.heuristic.problems import equal_times, linear
from zbplan.errors import MethodError
from zbplan.simulate import measure, simulate

DEVICES = (2, 3, 4, 5, 6, 7, 8, 9, 16, 17)


@pytest.mark.parametrize("p", DEVICES)
def test_1f1b_v_holds_two_thirds_at_equal_times(p: int) -> None:
    instance = equal_times("v", p, 2 * p, 3 * p).instance()
    measures = measure(instance, simulate(instance, one_f_one_b_v(instance)))
    assert instance.memory.value(measures.peak.max()) <= 4 * p / 3 + 2


@pytest.mark.parametrize("build", [one_f_one_b_v])
@pytest.mark.parametrize(("devices", "microbatches"), [(1, 1), (1, 4), (2, 1), (4, 2), (5, 3)])
def test_few_devices_and_microbatches_work(build: Any, devices: int, microbatches: int) -> None:
    instance = equal_times("v", devices, 2 * devices, microbatches).instance()
    assert measure(instance, simulate(instance, build(instance))).busy.tolist() == [6 * microbatches * 10**6] * devices


@pytest.mark.parametrize("build", [one_f_one_b_v])
def test_other_placements_are_refused_by_name(build: Any) -> None:
    with pytest.raises(MethodError, match="V placement; device 0 holds stage 0, not stages 0, 7"):
        build(linear(4, 8, 1, 1, 1).instance())
