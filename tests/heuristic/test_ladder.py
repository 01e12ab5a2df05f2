from __future__ import annotations

import itertools
from dataclasses import replace

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from heuristic import construct
from heuristic.ladder import least_time, rungs
from heuristic.list_schedule import list_schedule, task_of
from heuristic.objective import iteration
from heuristic.variation import Variation
from tests.heuristic.problems import equal_times, linear, paper_problem, paper_rows
from tests.strategies import problems
from zbplan.instance import UNLIMITED
from zbplan.problem import Problem

PROFILES = {name: next(row for row in paper_rows() if row["model"] == name) for name in ("1.5B", "6.2B")}


@settings(deadline=None, max_examples=100)
@given(problems(placements=("linear", "v", "interleaved")))
def test_no_orders_undercut_the_least_time(problem: Problem) -> None:
    instance = problem.instance()
    assert least_time(instance) <= iteration(instance, list_schedule(task_of(instance), Variation(instance).plain()))


def test_the_least_time_is_reached_where_one_microbatch_fits() -> None:
    instance = linear(4, 8, 3, 2, 1, comm=1, memory_limit=1).instance()
    one_by_one = 8 * (4 * 3 + 3 + 4 * 2 + 3 + 1)
    assert instance.clock.value(least_time(instance)) == pytest.approx(one_by_one, rel=1e-6)


@settings(deadline=None, max_examples=100)
@given(problems(placements=("linear", "v", "interleaved")))
def test_rungs_are_feasible_and_within_the_limit_the_highest_first(problem: Problem) -> None:
    instance = problem.instance()
    rooms = [rung.room for rung in rungs(instance)]
    assert rooms
    for room in rooms:
        assert (instance.smallest_room <= room).all()
        assert (room <= instance.room).all()
    assert all((higher > lower).all() for higher, lower in itertools.pairwise(rooms))


@settings(deadline=None, max_examples=100)
@given(problems(placements=("linear", "v"), limited=False), st.integers(0, 40), st.integers(1, 40))
def test_more_memory_adds_rungs_and_changes_none(problem: Problem, extra: int, more: int) -> None:
    instance = problem.instance()
    low, high = instance.smallest_room.max() + extra, instance.smallest_room.max() + extra + more
    fewer, all_rungs = (
        {tuple(rung.room.tolist()) for rung in rungs(replace(instance, room=np.full(instance.devices, room)))}
        for room in (low, high)
    )
    assert fewer <= all_rungs


def test_rungs_do_not_depend_on_what_a_limit_is_counted_in() -> None:
    coarse, fine = (linear(4, 8, 3, 2, 1, memory_limit=limit).instance() for limit in (5, 5.001))
    assert fine.memory.value(1000) != coarse.memory.value(1000)
    bytes_of = [{instance.memory.value(int(rung.room[0])) for rung in rungs(instance)} for instance in (coarse, fine)]
    assert bytes_of[0] == bytes_of[1]


def test_limits_above_everything_are_alike() -> None:
    instance = equal_times("linear", 4, 4, 30).instance()
    everything, none = (
        [rung.room.tolist() for rung in rungs(replace(instance, room=np.full(4, room)))] for room in (10**6, UNLIMITED)
    )
    assert everything == none
    assert none[0] >= [30 * 1] * 4


@pytest.mark.parametrize("optimizer", ["synchronous", "post_validated"])
@pytest.mark.parametrize("model", sorted(PROFILES))
def test_more_memory_never_gives_a_slower_plan_of_a_real_profile(model: str, optimizer: str) -> None:
    limits = [f"{sixteenth / 16}x" for sixteenth in range(3, 34, 3)]
    row = {**PROFILES[model], "microbatches": 12}
    plans = [construct(paper_problem(row, memory_limit=limit, optimizer=optimizer)) for limit in limits]
    iterations = [plan.metrics.iteration_ms for plan in plans]
    assert iterations == sorted(iterations, reverse=True)


@settings(deadline=None, max_examples=25)
@given(
    problems(placements=("linear", "v", "interleaved"), limited=False),
    st.lists(st.integers(0, 6), min_size=2, max_size=5),
)
def test_more_memory_never_gives_a_slower_plan(problem: Problem, steps: list[int]) -> None:
    instance = problem.instance()
    limit = max(instance.memory.value(units) for units in (instance.smallest_room + instance.static).tolist())
    last = None
    for step in steps:
        limit += step / 2
        iteration_ms = construct(problem.model_copy(update={"memory_limit": limit})).metrics.iteration_ms
        assert last is None or iteration_ms <= last
        last = iteration_ms


def test_what_f_can_fill_before_the_first_b_bounds_the_time() -> None:
    instance = linear(4, 8, 3, 2, 1, comm=1, memory_limit=2).instance()
    until_backward, filled = 4 * 3 + 3 * 2 + 2 * 3, 2 * 3
    idle_on_the_first = until_backward + 2 * 0 - filled
    assert instance.clock.value(least_time(instance)) >= 8 * (3 + 2 + 1) + idle_on_the_first
