from __future__ import annotations

from functools import partial
from importlib import import_module

import numpy as np
import pytest
from hypothesis import given, settings

from heuristic import partition
from heuristic.partition.balance import balanced
from heuristic.partition.exhaustive import every_cut
from heuristic.partition.fitting import fitting
from heuristic.partition.weights import Weights
from tests.heuristic.partition.layered import layered, open_problems
from zbplan.errors import InfeasibleError
from zbplan.placement import Placement, interleaved, v_shape
from zbplan.problem import Problem
from zbplan.validate import validate

search_module = import_module("heuristic.partition.search")
"""The module, whose package a function of the same name hides."""


@settings(deadline=None, max_examples=60)
@given(open_problems(max_layers=9, max_devices=4))
def test_a_cut_that_fits_is_found_exactly_where_one_of_all_cuts_does(problem: Problem) -> None:
    for placement in problem.placements:
        weights = Weights.of(problem, placement)
        missing = weights.missing(every_cut(weights.layers, weights.stages)).max(axis=1)
        found = fitting(weights)
        if found.starts is None:
            assert found.exhausted
            assert missing.min() > 0
        else:
            assert weights.missing(found.starts[None]).max() == 0


V, INTERLEAVED = v_shape(4), interleaved(4, 2)
HARD = [
    (V, [1, 9, 1, 1, 2, 9, 1, 8, 2, 1, 1, 2, 5, 9, 1, 5], [14, 18, 13, 20]),
    (INTERLEAVED, [8, 8, 5, 1, 2, 1, 9, 8, 1, 2, 1, 1, 5, 9, 1, 1, 8, 1], [16, 15, 20, 24]),
]
"""Static memory of layers and limits of devices for which no descent ends in a cut that fits, though there is one."""


def scattered(static: list[float], limits: list[float]) -> Problem:
    layers = {"t_f_ms": [1] * len(static), "t_b_ms": 1, "t_w_ms": 1, "m_b_bytes": 0, "m_static_bytes": static}
    return layered(layers, devices=4, microbatches=4, memory_limit=limits)


@pytest.mark.parametrize(("placement", "static", "limits"), HARD)
def test_a_cut_that_descents_miss_is_found(placement: Placement, static: list[float], limits: list[float]) -> None:
    problem = scattered(static, limits)
    weights = Weights.of(problem, placement)
    assert weights.missing(np.array(balanced(weights, [0.25]))).max() > 0
    best = partition(problem, placements=[placement], effort=1_000).best
    assert validate(best.built.plan.answering(problem, best.starts)) == []


@pytest.mark.parametrize(("placement", "static", "limits"), HARD)
def test_where_no_cut_fits_it_is_said_to_be_proven(
    placement: Placement, static: list[float], limits: list[float]
) -> None:
    problem = scattered(static, [limit - 2 for limit in limits])
    with pytest.raises(InfeasibleError, match="memory limit too small for any cut of the layers; on the cut that came"):
        partition(problem, placements=[placement], effort=1_000)


@pytest.mark.parametrize(("placement", "static", "limits"), HARD)
def test_a_byte_of_many_gigabytes_decides_whether_a_cut_fits(
    placement: Placement, static: list[float], limits: list[float]
) -> None:
    large, enough = [each * 10**10 for each in static], [limit * 10**10 for limit in limits]
    assert fitting(Weights.of(scattered(large, enough), placement)).starts is not None
    found = fitting(Weights.of(scattered(large, [limit - 1 for limit in enough]), placement))
    assert (found.starts, found.exhausted) == (None, True)


@pytest.mark.parametrize("byte", [1, 0.25])
def test_a_cut_that_lacks_a_byte_does_not_hide_one_that_fits(byte: float) -> None:
    layers = {"t_f_ms": [2, 1, 1], "t_b_ms": 1, "t_w_ms": 1, "m_b_bytes": 0, "m_static_bytes": [10**10, byte, 10**10]}
    problem = layered(layers, devices=2, microbatches=4, memory_limit=[10**10 + byte, 10**10])
    assert partition(problem, effort=1_000).best.starts == (0, 2)


def test_the_limits_that_would_do_are_told_to_the_byte() -> None:
    limits, smallest = [10_000_000.0, 10_000_000.0], [77_253_164.0, 73_711_671.0]
    assert "device 0 has 10000000 and needs 77253164" in str(InfeasibleError(limits, smallest))


def test_a_search_that_gives_up_proves_nothing() -> None:
    placement, static, limits = HARD[0]
    weights = Weights.of(scattered(static, [limit - 1 for limit in limits]), placement)
    assert fitting(weights).exhausted
    found = fitting(weights, most=50)
    assert (found.starts, found.exhausted) == (None, False)


def test_without_a_proof_it_is_not_said_that_no_cut_fits(monkeypatch: pytest.MonkeyPatch) -> None:
    placement, static, limits = HARD[0]
    monkeypatch.setattr(search_module, "fitting", partial(fitting, most=50))
    with pytest.raises(InfeasibleError, match=r"no cut of the layers was found that fits .* though not all were tried"):
        partition(scattered(static, [limit - 1 for limit in limits]), placements=[placement], effort=1_000)
