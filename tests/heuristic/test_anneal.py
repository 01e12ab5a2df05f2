from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from heuristic import best_per_placement
from heuristic.anneal import anneal
from heuristic.list_schedule import list_schedule, task_of
from heuristic.objective import iteration
from heuristic.v_half import v_half
from heuristic.variation import Variation
from tests.heuristic.problems import linear, paper_problem, paper_rows, published_rows
from tests.strategies import problems
from zbplan.instance import Instance, Orders
from zbplan.plan import Plan
from zbplan.problem import Problem
from zbplan.validate import validate


def plain(instance: Instance) -> Orders:
    return list_schedule(task_of(instance), Variation(instance).plain())


@settings(deadline=None, max_examples=100)
@given(problems(placements=("linear", "v", "interleaved")), st.sampled_from([0.0, 0.3, 10.0]), st.integers(1, 1000))
def test_orders_stay_legal_and_become_no_worse(problem: Problem, heat: float, seed: int) -> None:
    instance = problem.instance()
    start = plain(instance)
    found = anneal(instance, start, effort=20_000, heat=heat, seed=seed)
    assert iteration(instance, found) <= iteration(instance, start)
    assert validate(Plan.build(problem, problem.placements[0], found, method="planner")) == []
    for device in range(instance.devices):
        np.testing.assert_array_equal(np.sort(found.on(device)), np.sort(start.on(device)))


def test_a_weight_goes_up_only_where_its_own_peak_has_room() -> None:
    profile = {
        "stages": 4,
        "t_f_ms": [4, 1, [5, 2], [0, 0]],
        "t_b_ms": 5,
        "t_w_ms": [4, [4, 0], [5, 3], 4],
        "t_comm_ms": 2,
        "m_b_bytes": [[3, 1], 0, [2, 0], 3],
        "m_w_bytes": [3, [3, 1], 1, 3],
        "m_peak_bytes": [0, 0, 1, 1],
    }
    problem = Problem.parse(
        {"profile": profile, "devices": 2, "microbatches": 2, "placement": "v", "memory_limit": [11, 3]}
    )
    (built,) = best_per_placement(problem)
    assert validate(Plan.build(problem, built.placement, built.orders, method=built.method)) == []


@pytest.mark.parametrize("factor", [1e3, 1e5])
def test_ops_that_take_seconds_or_minutes_are_annealed_as_well(factor: float) -> None:
    instance = linear(4, 8, 7 * factor, 8 * factor, 5 * factor, comm=factor, memory_limit=4).instance()
    start = plain(instance)
    found = anneal(instance, start, effort=500_000, heat=0.3)
    assert iteration(instance, found) <= 0.99 * iteration(instance, start)


def test_the_orders_given_are_left_as_they_are() -> None:
    instance = linear(4, 8, 7, 8, 5, comm=1, memory_limit=4).instance()
    start = plain(instance)
    before = start.ops.copy()
    assert iteration(instance, anneal(instance, start, effort=500_000, heat=0.3)) < iteration(instance, start)
    np.testing.assert_array_equal(start.ops, before)


def test_without_effort_nothing_changes() -> None:
    instance = linear(4, 8, 7, 8, 5, comm=1, memory_limit=4).instance()
    start = plain(instance)
    np.testing.assert_array_equal(anneal(instance, start, effort=0).ops, start.ops)


def test_equal_inputs_give_equal_orders_and_another_seed_others() -> None:
    instance = paper_problem(paper_rows()[0], memory_limit="0.9x", optimizer="post_validated").instance()
    start = plain(instance)
    first, second, third = (anneal(instance, start, effort=300_000, heat=0.1, seed=seed) for seed in (1, 1, 2))
    np.testing.assert_array_equal(first.ops, second.ops)
    assert (first.ops != third.ops).any()


@pytest.mark.parametrize("optimizer", ["post_validated", "synchronous"])
def test_v_half_becomes_shorter_under_its_own_limit(optimizer: str) -> None:
    (row,) = (row for row in published_rows() if row["id"] == "T8:6.2B:p16:m48:V-Half")
    instance = Problem.parse({**row["problem"], "optimizer": optimizer}).instance()
    found = anneal(instance, v_half(instance), effort=30_000_000)
    assert instance.clock.value(iteration(instance, found)) < 4520 < 4528.7
