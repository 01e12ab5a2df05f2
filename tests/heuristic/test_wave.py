from __future__ import annotations

from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings

from heuristic.objective import iteration
from heuristic.wave import counts, first_wave, flows_down
from heuristic.zb_greedy import zb_greedy
from solver.bounds import lower_bound
from tests.heuristic.problems import equal_times, linear, paper_problem, paper_rows
from tests.strategies import problems
from zbplan.plan import Plan
from zbplan.problem import Problem
from zbplan.validate import validate


@settings(deadline=None, max_examples=60)
@given(problems())
def test_the_wave_is_legal_under_every_feasible_limit(problem: Problem) -> None:
    instance = problem.instance()
    assert flows_down(instance)
    assert validate(Plan.build(problem, problem.placements[0], first_wave(instance), method="planner")) == []


@pytest.mark.parametrize("devices", [1, 2, 4, 8])
def test_equal_times_and_enough_memory_give_the_counts_of_zb_h2(devices: int) -> None:
    instance = equal_times("linear", devices, devices, 4 * devices).instance()
    np.testing.assert_array_equal(counts(instance), 2 * np.arange(devices - 1, -1, -1) + 1)


def test_memory_caps_the_counts() -> None:
    instance = equal_times("linear", 4, 4, 16, memory_limit=3).instance()
    np.testing.assert_array_equal(counts(instance), [3, 3, 3, 1])


def test_a_slow_transfer_asks_for_more() -> None:
    instance = linear(2, 30, 1, 1, 1, comm=10).instance()
    np.testing.assert_array_equal(counts(instance), [23, 1])


def test_f_that_takes_no_time_fills_no_gap() -> None:
    assert counts(linear(2, 4, [0, 1], 1, 1).instance()).tolist() == [4, 1]


def test_other_placements_have_no_wave() -> None:
    assert not flows_down(equal_times("v", 4, 8, 8).instance())


@pytest.mark.parametrize("row", [row for row in paper_rows() if row["devices"] == 8], ids=lambda row: row["model"])
def test_with_twice_the_memory_the_wave_or_the_papers_heuristic_is_optimal(row: dict[str, Any]) -> None:
    instance = paper_problem(row, memory_limit="2x", optimizer="post_validated").instance()
    found = [iteration(instance, orders) for orders in (first_wave(instance), zb_greedy(instance))]
    assert min(found) == lower_bound(instance).ticks
