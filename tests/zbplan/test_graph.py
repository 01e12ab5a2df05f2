from __future__ import annotations

from itertools import pairwise
from typing import Any

import networkx as nx
import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from heuristic import construct
from tests.strategies import problems, random_orders
from zbplan.graph import avoidable_gaps, critical_path, event_graph
from zbplan.plan import Plan, columns, metrics_of, plan_id
from zbplan.problem import Problem
from zbplan.simulate import Schedule, measure, simulate
from zbplan.validate import check

PLACEMENTS = ("linear", "v", "interleaved")
SEEDS = st.integers(0, 1 << 16)


def plan_of(devices: int, microbatches: int, method: str = "1f1b", **changes: Any) -> Plan:
    profile = {"stages": devices, "t_f_ms": 10, "t_b_ms": 10, "t_w_ms": 5, "t_comm_ms": 1}
    profile |= {"m_b_bytes": 2, "m_w_bytes": 1}
    fields = {"profile": profile, "devices": devices, "microbatches": microbatches, "method": method}
    return construct(Problem.parse({**fields, **changes}))


def delayed(plan: Plan, wait_ms: float) -> Plan:
    """Return a legal plan in which everything but the first op of device 0 starts later, for no reason."""
    instance, orders = plan.instance(), plan.orders()
    schedule = simulate(instance, orders)
    wait = np.full(len(orders.ops), instance.clock.units(wait_ms))
    wait[0] = 0
    later = Schedule(orders, schedule.start + wait, schedule.end + wait)
    devices, metrics = columns(instance, later), metrics_of(instance, measure(instance, later))
    names = {"devices": devices, "metrics": metrics, "plan_id": plan_id(plan.problem, plan.placement, devices)}
    return check(plan.model_copy(update=names).with_bound(0.0, "none"))


def test_second_rank_starts_when_the_first_microbatch_arrives() -> None:
    plan = plan_of(4, 8)
    graph, instance = event_graph(plan), plan.instance()
    producer, consumer = instance.code(0, 0, 0), instance.code(0, 1, 0)
    assert graph.nodes[consumer]["op"].start_ms == 11
    assert graph.edges[producer, consumer] == {"lag": instance.clock.units(1), "reason": "transfer"}
    assert avoidable_gaps(plan) == []


def test_a_start_later_than_its_input_is_an_avoidable_gap() -> None:
    plan = delayed(plan_of(4, 8), 3)
    gaps = {str(gap.op): gap for gap in avoidable_gaps(plan)}
    assert set(gaps) == {"F(stage 0, microbatch 1)", "F(stage 1, microbatch 0)"}
    assert gaps["F(stage 1, microbatch 0)"].gap_ms == 3
    expected = "waited 3 ms for nothing after F(stage 0, microbatch 0) + transfer 1 ms"
    assert str(gaps["F(stage 1, microbatch 0)"]) == expected
    assert "gap" in {wait.reason for wait in critical_path(plan)}


@pytest.mark.parametrize("method", ["1f1b", "zb_h1"])
def test_reasons_are_said_in_words(method: str) -> None:
    reasons = [str(wait) for wait in critical_path(plan_of(2, 2, method))]
    assert reasons[0] == "started at once"
    assert "input from F(stage 0, microbatch 0) on device 0 + transfer 1 ms" in reasons
    assert "device was busy with F(stage 1, microbatch 0)" in reasons


@settings(deadline=None)
@given(problems(placements=PLACEMENTS, limited=False), SEEDS)
def test_longest_path_of_the_graph_is_the_makespan(problem: Problem, seed: int) -> None:
    problem = problem.model_copy(update={"optimizer": "synchronous"})
    instance = problem.instance()
    plan = Plan.build(problem, problem.placements[0], random_orders(instance, seed), method="random")
    graph = event_graph(plan)
    length: dict[int, int] = dict.fromkeys(graph, 0)
    for op in nx.topological_sort(graph):
        done = length[op] + int(instance.duration.ravel()[op])
        length |= {after: max(length[after], done + edge["lag"]) for after, edge in graph[op].items()}
    ends = [length[op] + int(instance.duration.ravel()[op]) for op in graph]
    assert instance.clock.value(max(ends)) == plan.metrics.makespan_ms


@settings(deadline=None)
@given(problems(placements=PLACEMENTS, limited=False), SEEDS)
def test_every_wait_of_the_critical_path_ends_the_one_before(problem: Problem, seed: int) -> None:
    plan = Plan.build(problem, problem.placements[0], random_orders(problem.instance(), seed), method="random")
    path, clock = critical_path(plan), plan.instance().clock
    assert path[0].reason in ("start", "put_off")
    assert {wait.reason for wait in path[1:]} <= {"busy", "input"}
    for before, after in pairwise(path):
        assert after.cause == before.op
        assert clock.units(before.op.end_ms) + clock.units(after.transfer_ms) == clock.units(after.op.start_ms)
        assert (after.reason == "busy") == (before.op.device == after.op.device)
    last = plan.devices[path[-1].op.device]
    begin = min(ops.start_ms[0] for ops in plan.devices) if problem.optimizer == "synchronous" else last.start_ms[0]
    assert path[-1].op.end_ms == last.end_ms[-1]
    assert clock.units(last.end_ms[-1]) - clock.units(begin) == clock.units(plan.metrics.iteration_ms)


@settings(deadline=None)
@given(problems(placements=PLACEMENTS, limited=False), SEEDS)
def test_built_plans_have_no_avoidable_gap(problem: Problem, seed: int) -> None:
    plan = Plan.build(problem, problem.placements[0], random_orders(problem.instance(), seed), method="random")
    assert avoidable_gaps(plan) == []


def test_post_validated_path_explains_the_longest_span() -> None:
    plan = plan_of(4, 8, "zb_h1", optimizer="post_validated")
    spans = [ops.end_ms[-1] - ops.start_ms[0] for ops in plan.devices]
    path = critical_path(plan)
    assert path[-1].op.device == spans.index(max(spans))


def test_first_op_that_is_put_off_is_no_gap() -> None:
    times = {"t_f_ms": [1, 9], "t_b_ms": [1, 9], "t_w_ms": [1, 9], "t_comm_ms": 0, "m_b_bytes": 1, "m_w_bytes": 1}
    fields = {"devices": 2, "microbatches": 2, "method": "gpipe", "optimizer": "post_validated"}
    plan = construct(Problem.parse({"profile": {"stages": 2, **times}, **fields}))
    instance, orders = plan.instance(), plan.orders()
    late = simulate(instance, orders, release=np.array([0, instance.clock.units(5)]))
    devices = columns(instance, late)
    changed = plan.model_copy(update={"devices": devices})
    assert avoidable_gaps(changed) == []
    first = next(wait for wait in critical_path(changed) if wait.op.device == 1)
    assert first.reason in ("start", "put_off")
