from __future__ import annotations

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from solver import Options, solve
from tests.heuristic.problems import linear
from tests.solver.exact import optimum
from tests.solver.tiny import tiny_problem


@pytest.mark.parametrize(
    ("changes", "expected_ms"),
    [
        ({}, 7),  # F, then four ops of stage 1, then B and W
        ({"memory_limit": 1}, 10),  # twice F, F, B, B, W
        ({"optimizer": "post_validated"}, 7),
        ({"t_bw_ms": 1}, 6),
    ],
)
def test_optimum_of_two_stages_by_hand(changes: dict[str, float], expected_ms: float) -> None:
    instance = linear(2, 2, 1, 1, 1, **changes).instance()
    assert optimum(instance) == instance.clock.units(expected_ms)


def test_no_plan_is_better_than_the_optimum() -> None:
    reached = 0
    for seed in range(1000, 1100):
        problem = tiny_problem(seed)
        instance = problem.instance()
        best = optimum(instance)
        assert best is not None
        iteration = instance.clock.units(solve(problem, options=Options(parts=())).metrics.iteration_ms)
        assert iteration >= best, seed
        reached += iteration == best
    assert reached > 50


@settings(deadline=None, max_examples=60)
@given(st.integers(min_value=2000))
def test_the_optimum_lies_between_the_bound_and_the_plan(seed: int) -> None:
    problem = tiny_problem(seed)
    instance = problem.instance()
    plan = solve(problem, options=Options(parts=()))
    best = optimum(instance)
    assert best is not None
    assert instance.clock.units(plan.bound.iteration_ms) <= best <= instance.clock.units(plan.metrics.iteration_ms)


def test_memory_below_the_smallest_room_has_no_orders_at_all() -> None:
    assert optimum(linear(2, 2, 1, 1, 1, m_b_bytes=2, memory_limit=1).instance()) is None
