from __future__ import annotations

from itertools import pairwise

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from tests.strategies import problems, random_orders
from zbplan.errors import DeadlockError
from zbplan.instance import BW, B, F, Orders, W
from zbplan.problem import Problem
from zbplan.simulate import inputs, measure, memory_curve, run_orders, simulate, simulate_reference

ALL = ("linear", "v", "interleaved")


@settings(deadline=None)
@given(problems(placements=ALL), st.integers(0, 2**32))
def test_kernel_and_reference_agree(problem: Problem, seed: int) -> None:
    instance = problem.instance()
    orders = random_orders(instance, seed)
    compiled, reference = simulate(instance, orders), simulate_reference(instance, orders)
    np.testing.assert_array_equal(compiled.start, reference.start)
    np.testing.assert_array_equal(compiled.end, reference.end)


@settings(deadline=None)
@given(problems(placements=ALL), st.integers(0, 2**32))
def test_every_op_starts_at_the_latest_of_its_inputs_and_its_device(problem: Problem, seed: int) -> None:
    instance = problem.instance()
    schedule = simulate(instance, random_orders(instance, seed))
    end = dict(zip(schedule.orders.ops.tolist(), schedule.end.tolist(), strict=True))
    for device in range(instance.devices):
        free = 0
        part = slice(*schedule.orders.offsets[device : device + 2].tolist())
        for op, start in zip(schedule.orders.ops[part].tolist(), schedule.start[part].tolist(), strict=True):
            arrivals = [
                next(end[producer] for producer in producers if producer in end) + lag
                for producers, lag in inputs(instance, op)
            ]
            assert start == max([free, *arrivals])
            free = end[op]


def small(**changes: object) -> Problem:
    profile = {"stages": 2, "t_f_ms": 2, "t_b_ms": 3, "t_w_ms": 1, "t_comm_ms": 0.5, "m_b_bytes": 4, "m_w_bytes": 1}
    fields = {"profile": {**profile, **changes}, "devices": 2, "microbatches": 1, "placement": "linear"}
    return Problem.parse(fields)


def test_times_of_one_microbatch_by_hand() -> None:
    instance = small().instance()
    code = instance.code
    orders = Orders.of([[code(F, 0, 0), code(B, 0, 0), code(W, 0, 0)], [code(F, 1, 0), code(B, 1, 0), code(W, 1, 0)]])
    schedule = simulate(instance, orders)
    assert instance.clock.values(schedule.start) == [0.0, 8.0, 11.0, 2.5, 4.5, 7.5]
    assert instance.clock.values(schedule.end) == [2.0, 11.0, 12.0, 4.5, 7.5, 8.5]
    measures = measure(instance, schedule)
    assert instance.clock.value(measures.makespan) == 12.0
    assert instance.clock.values(measures.span) == [12.0, 6.0]
    assert measures.bubble_rate == pytest.approx(0.5)


@pytest.mark.parametrize(("m_w_bytes", "curve"), [(1, [4, 4, 1]), (6, [4, 6, 6])])
def test_memory_is_released_by_b_and_w_and_b_may_add(m_w_bytes: float, curve: list[int]) -> None:
    instance = small(m_w_bytes=m_w_bytes, m_static_bytes=10, m_peak_bytes=0.5).instance()
    ops = np.array([instance.code(kind, 0, 0) for kind in (F, B, W)])
    units = memory_curve(instance, ops, 0).tolist()
    assert [instance.memory.value(unit) for unit in units] == [10.5 + live for live in curve]


def test_fused_backward_holds_only_m_b() -> None:
    instance = small(m_w_bytes=6).instance()
    ops = np.array([instance.code(kind, 0, 0) for kind in (F, BW)])
    assert memory_curve(instance, ops, 0).tolist() == [4, 4]


def test_objective_is_span_only_when_post_validated() -> None:
    problem = small()
    orders = random_orders(problem.instance(), 0)
    span = problem.model_copy(update={"optimizer": "post_validated"}).instance()
    assert measure(span, simulate(span, orders)).iteration == measure(span, simulate(span, orders)).span.max()
    plain = problem.instance()
    measures = measure(plain, simulate(plain, orders))
    assert measures.iteration == measures.makespan


def test_deadlock_names_where_each_device_stands() -> None:
    instance = small().instance()
    code = instance.code
    orders = Orders.of([[code(F, 0, 0), code(B, 0, 0), code(W, 0, 0)], [code(B, 1, 0), code(F, 1, 0), code(W, 1, 0)]])
    for run in (simulate, simulate_reference):
        with pytest.raises(DeadlockError, match=r"device 1 waits to run B\(stage 1, microbatch 0\)"):
            run(instance, orders)


@settings(deadline=None, max_examples=60)
@given(problems(placements=ALL, limited=False), st.integers(0, 2**32), st.floats(0, 1))
def test_ops_before_a_change_need_not_be_timed_again(problem: Problem, seed: int, part: float) -> None:
    instance = problem.instance()
    orders = random_orders(instance, seed)
    whole = simulate(instance, orders)
    since = int(part * int(whole.end.max()))
    known = [int(np.searchsorted(whole.start[a:b], since)) + a for a, b in pairwise(orders.offsets.tolist())]
    start, end = whole.start.copy(), whole.end.copy()
    for device, at in enumerate(known):
        start[at : orders.offsets[device + 1]] = end[at : orders.offsets[device + 1]] = -1
    lags = (instance.device_of, instance.forward_lag, instance.backward_lag, np.zeros(instance.devices, dtype=np.int64))
    position = run_orders(orders.ops, orders.offsets, instance.duration, *lags, np.array(known), start, end)
    np.testing.assert_array_equal(position, orders.offsets[1:])
    np.testing.assert_array_equal(start, whole.start)
    np.testing.assert_array_equal(end, whole.end)
