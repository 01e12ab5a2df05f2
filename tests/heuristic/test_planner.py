from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from heuristic.objective import at_best, iteration
from heuristic.planner import improvements, least_work
from heuristic.zb_greedy import zb_greedy
from tests.heuristic.problems import equal_times, linear, paper_problem, paper_rows
from tests.strategies import problems
from zbplan.instance import F
from zbplan.plan import Plan
from zbplan.problem import Problem
from zbplan.validate import validate

ALL = ("linear", "v", "interleaved")


@settings(deadline=None, max_examples=60)
@given(problems(placements=ALL), st.integers(1, 40_000))
def test_every_step_is_legal_and_better_than_the_last(problem: Problem, effort: int) -> None:
    instance = problem.instance()
    found = list(improvements(instance, [], effort=effort))
    objectives = [at_best(instance, orders) for orders in found]
    assert objectives == sorted(set(objectives), reverse=True)
    assert objectives[-1] >= least_work(instance)
    for orders in found:
        assert validate(Plan.build(problem, problem.placements[0], orders, method="planner")) == []


@pytest.mark.parametrize("placement", [[[1, 2], [0]], [[0, 2, 4], [1], [3]], [[0], [1, 2, 3]]])
def test_devices_may_hold_different_numbers_of_stages(placement: list[list[int]]) -> None:
    stages = sum(map(len, placement))
    times = {"t_f_ms": 3, "t_b_ms": 2, "t_w_ms": 1, "t_comm_ms": 1, "m_b_bytes": 1, "m_w_bytes": 1}
    profile = {"stages": stages, **times, "splittable": False}
    fields = {"devices": len(placement), "microbatches": 3, "placement": placement}
    problem = Problem.parse({"profile": profile, **fields})
    for orders in improvements(problem.instance(), [], effort=150_000):
        assert validate(Plan.build(problem, placement, orders, method="planner")) == []


def test_nothing_is_found_beyond_the_work_of_the_busiest_device() -> None:
    instance = linear(1, 4, 3, 2, 1).instance()
    (only,) = improvements(instance, [], effort=10**9)
    assert iteration(instance, only) == least_work(instance)
    assert list(improvements(instance, [only], effort=10**9)) == []


def test_a_start_is_never_given_back_as_an_improvement() -> None:
    instance = paper_problem(paper_rows()[0], memory_limit="1x", optimizer="post_validated").instance()
    start = zb_greedy(instance)
    assert all(iteration(instance, orders) < iteration(instance, start) for orders in improvements(instance, [start]))


def test_it_ends_when_asked_to_but_not_without_any_orders() -> None:
    instance = equal_times("v", 4, 8, 8, memory_limit=6).instance()
    (only,) = improvements(instance, [], effort=10**9, stop=lambda: True)
    assert list(improvements(instance, [only], effort=10**9, stop=lambda: True)) == []


def test_equal_inputs_give_equal_orders() -> None:
    instance = equal_times("v", 4, 8, 8, memory_limit=6).instance()
    first, second = (list(improvements(instance, [], effort=200_000)) for _ in range(2))
    assert len(first) == len(second) > 1
    for a, b in zip(first, second, strict=True):
        np.testing.assert_array_equal(a.ops, b.ops)


@pytest.mark.parametrize(
    ("limit", "span_ms"),
    [("0.5x", 2101), ("1.25x", 1219), ("1.5x", 1164), ("2x", 1152.6)],
)
def test_between_the_names_memory_is_used_as_well_as_is_known(limit: str, span_ms: float) -> None:
    instance = paper_problem(paper_rows()[0], memory_limit=limit, optimizer="post_validated").instance()
    start = zb_greedy(instance)
    *_, best = [start, *improvements(instance, [start], effort=2_000_000)]
    assert instance.clock.value(iteration(instance, best)) <= span_ms


def test_microbatches_of_unequal_length_change_places() -> None:
    times = [[1, 9, 1, 1, 1, 5]] * 4
    instance = linear(4, 6, times, times, times).instance()
    *_, best = improvements(instance, [], effort=200_000)
    entered = [instance.split(op)[2] for op in best.on(0).tolist() if instance.split(op)[0] == F]
    assert sorted(entered) == list(range(6)) != entered
    assert iteration(instance, best) < iteration(instance, zb_greedy(instance))
