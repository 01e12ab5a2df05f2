from __future__ import annotations

from itertools import pairwise

import numpy as np
from hypothesis import given, settings
from hypothesis import strategies as st

from tests.strategies import problems, random_orders
from zbplan.instance import B, F, Instance, Orders, W
from zbplan.plan import Plan
from zbplan.problem import Problem
from zbplan.simulate import inputs, measure, simulate, simulate_reference
from zbplan.tighten import tighten
from zbplan.validate import validate


def can_meet(instance: Instance, orders: Orders, span: int) -> bool:
    """Bellman-Ford over all ops: can every device's span be at most ``span``?"""
    duration = instance.duration.ravel()
    ran = set(orders.ops.tolist())
    edges = []
    for device in range(instance.devices):
        ops = orders.on(device).tolist()
        edges += [(before, after, int(duration[before])) for before, after in pairwise(ops)]
        edges.append((ops[-1], ops[0], int(duration[ops[-1]]) - span))
    for op in ran:
        for producers, lag in inputs(instance, op):
            (producer,) = [candidate for candidate in producers if candidate in ran]
            edges.append((producer, op, int(duration[producer]) + lag))
    start = dict.fromkeys(ran, 0)
    for _ in range(len(ran) + 1):
        moved = [(after, start[before] + wait) for before, after, wait in edges if start[before] + wait > start[after]]
        if not moved:
            return True
        for after, time in moved:
            start[after] = max(start[after], time)
    return False


@settings(deadline=None, max_examples=150)
@given(
    problems(placements=("linear", "v", "interleaved"), max_microbatches=3, limited=False),
    st.integers(0, 1 << 16),
)
def test_the_longest_span_is_the_least_that_the_orders_allow(problem: Problem, seed: int) -> None:
    problem = problem.model_copy(update={"optimizer": "post_validated"})
    instance = problem.instance()
    orders = random_orders(instance, seed)
    span = measure(instance, tighten(instance, orders)).iteration
    assert span <= measure(instance, simulate(instance, orders)).iteration
    assert can_meet(instance, orders, span)
    assert span == 0 or not can_meet(instance, orders, span - 1)
    assert not validate(Plan.build(problem, problem.placements[0], orders, method="random"))


@settings(deadline=None, max_examples=50)
@given(problems(placements=("linear", "v")), st.integers(0, 1 << 16), st.lists(st.integers(0, 10**9), min_size=4))
def test_kernel_and_reference_agree_on_releases(problem: Problem, seed: int, ticks: list[int]) -> None:
    instance = problem.instance()
    orders = random_orders(instance, seed)
    release = np.array(ticks[: instance.devices], dtype=np.int64)
    kernel, reference = simulate(instance, orders, release), simulate_reference(instance, orders, release)
    assert kernel.start.tolist() == reference.start.tolist()
    assert (kernel.start[orders.offsets[:-1]] >= release).all()


def test_a_device_that_would_wait_after_its_first_op_starts_later() -> None:
    profile = {"stages": 2, "t_f_ms": [10, 1], "t_b_ms": 1, "t_w_ms": [0, 30], "t_comm_ms": 0}
    memory = {"m_b_bytes": 1, "m_w_bytes": 0}
    fields = {"profile": profile | memory, "devices": 2, "microbatches": 2, "optimizer": "post_validated"}
    instance = Problem.parse(fields).instance()
    order = [(F, 0), (F, 1), (B, 0), (B, 1), (W, 0), (W, 1)]
    orders = Orders.of([[instance.code(kind, stage, number) for kind, number in order] for stage in range(2)])
    late = tighten(instance, orders)
    # The second input arrives 10 ms after the first: running the first 9 ms later costs nothing and saves 9 ms.
    assert instance.clock.value(late.start[orders.offsets[1]]) == 19
    assert instance.clock.value(measure(instance, simulate(instance, orders)).iteration) == 73
    assert instance.clock.value(measure(instance, late).iteration) == 64
