from __future__ import annotations

import pytest

from heuristic.interleaved_1f1b import interleaved_1f1b
from tests.heuristic.problems import equal_times, linear
from zbplan.errors import MethodError
from zbplan.simulate import measure, simulate


@pytest.mark.parametrize(("p", "chunks"), [(2, 2), (4, 2), (4, 3), (8, 4)])
def test_bubble_and_memory_are_the_closed_forms(p: int, chunks: int) -> None:
    m = 2 * p
    instance = equal_times("interleaved", p, p * chunks, m).instance()
    measures = measure(instance, simulate(instance, interleaved_1f1b(instance)))
    assert instance.clock.value(measures.makespan) == 3 * chunks * m + 3 * (p - 1)
    held = [2 * (p - 1 - device) + (chunks - 1) * p + 1 for device in range(p)]
    assert [instance.memory.value(peak) for peak in measures.peak] == held


@pytest.mark.parametrize(("p", "chunks"), [(1, 2), (2, 2), (3, 3), (4, 2)])
def test_any_number_of_microbatches_is_scheduled(p: int, chunks: int) -> None:
    for m in range(1, 3 * p + 2):
        instance = equal_times("interleaved", p, p * chunks, m).instance()
        measures = measure(instance, simulate(instance, interleaved_1f1b(instance)))
        assert measures.busy.tolist() == [instance.clock.units(3 * chunks * m)] * p


def test_other_placements_are_refused_by_name() -> None:
    with pytest.raises(MethodError, match="interleaved placement; device 0 holds stages 0, 7, not stages 0, 4"):
        interleaved_1f1b(equal_times("v", 4, 8, 8).instance())
    with pytest.raises(MethodError, match="interleaved placement; device 0 holds stage 0, not stages 0, 4"):
        interleaved_1f1b(linear(4, 8, 1, 1, 1).instance())
