from __future__ import annotations

import numpy as np
from hypothesis import assume, given, settings
from hypothesis import strategies as st

from heuristic.list_schedule import list_schedule
from heuristic.list_schedule import task_of as tables_of
from heuristic.objective import iteration
from heuristic.retime import (
    NEVER,
    State,
    copy,
    critical_path,
    ends_of,
    know_before,
    note_ends,
    note_positions,
    objective,
    retime,
    space_of,
    state_of,
    task_of,
)
from heuristic.variation import Variation
from tests.heuristic.problems import linear
from tests.strategies import problems
from zbplan.errors import DeadlockError
from zbplan.instance import Instance, IntArray, Orders
from zbplan.problem import Problem
from zbplan.simulate import Schedule, simulate


def planned(instance: Instance, seed: int) -> Orders:
    return list_schedule(tables_of(instance), Variation(instance, seed).random_policy())


def swapped(ops: IntArray, at: int) -> IntArray:
    ops = ops.copy()
    ops[[at, at + 1]] = ops[[at + 1, at]]
    return ops


def timed(instance: Instance, ops: IntArray, offsets: IntArray) -> Schedule | None:
    try:
        return simulate(instance, Orders(ops, offsets))
    except DeadlockError:
        return None


def assert_times(state: State, schedule: Schedule) -> None:
    np.testing.assert_array_equal(state.start, schedule.start)
    np.testing.assert_array_equal(state.end, schedule.end)


@settings(deadline=None, max_examples=100)
@given(problems(placements=("linear", "v", "interleaved")), st.integers(0, 99), st.data())
def test_times_are_those_of_the_simulator_after_any_swaps(problem: Problem, seed: int, data: st.DataObject) -> None:
    instance = problem.instance()
    orders = planned(instance, seed)
    task = task_of(instance, orders)
    state, tried = state_of(task, orders.ops), state_of(task, orders.ops)
    ends, space = ends_of(task, state), space_of(task, len(orders.ops))
    assert_times(state, simulate(instance, orders))
    for at in data.draw(st.lists(st.integers(0, len(orders.ops) - 2), max_size=6)):
        if at + 1 in orders.offsets:
            continue
        tried.ops[:] = swapped(state.ops, at)
        later = know_before(task, state, int(state.start[at]), space)
        assert later == (state.start >= state.start[at]).sum()
        expected = timed(instance, tried.ops, orders.offsets)
        assert retime(task, tried, ends, NEVER, space) == (expected is not None)
        if expected is None:
            copy(task, state, tried, space)
            note_ends(task, state, ends, space)
            continue
        copy(task, tried, state, space)
        note_positions(task, state, space)
        assert_times(state, expected)
        assert objective(task, state) == iteration(instance, expected.orders)


@settings(deadline=None, max_examples=100)
@given(problems(placements=("linear", "v")), st.integers(0, 99), st.integers(-3, 3))
def test_it_gives_up_on_what_is_not_good_enough_and_only_on_that(problem: Problem, seed: int, more: int) -> None:
    instance = problem.instance()
    orders = planned(instance, seed)
    task = task_of(instance, orders)
    state = state_of(task, orders.ops)
    most = objective(task, state) + more
    assume(most >= 0)
    space = space_of(task, len(orders.ops))
    know_before(task, state, 0, space)
    assert retime(task, state, ends_of(task, state), most, space) == (more >= 0)


def test_the_critical_path_leads_without_a_wait_to_the_last_end() -> None:
    instance = linear(4, 8, 3, 2, 1, comm=0.5, memory_limit=4, optimizer="synchronous").instance()
    orders = planned(instance, 0)
    task = task_of(instance, orders)
    state = state_of(task, orders.ops)
    path = space_of(task, len(orders.ops)).path
    path = path[: critical_path(task, state, ends_of(task, state), path)]
    assert state.end[path[0]] == state.end.max()
    assert state.start[path[-1]] == 0
    waits = state.start[path[:-1]] - state.end[path[1:]]
    assert set(waits.tolist()) <= {0, instance.clock.units(0.5)}
