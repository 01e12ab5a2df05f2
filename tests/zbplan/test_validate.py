from __future__ import annotations

import random
from collections.abc import Callable
from typing import Any

import pytest
from hypothesis import assume, given, settings
from hypothesis import strategies as st

from tests.strategies import problems, random_orders
from zbplan.errors import InvalidPlanError
from zbplan.instance import BW, B, F, Orders, W
from zbplan.plan import Plan, plan_id
from zbplan.problem import Problem
from zbplan.validate import check, validate

ALL = ("linear", "v", "interleaved")


def build(problem: Problem, seed: int) -> Plan:
    return Plan.build(problem, problem.placements[0], random_orders(problem.instance(), seed), method="random")


def altered(plan: Plan, change: Callable[[dict[str, Any]], None], *, seal: bool = True) -> Plan:
    """Return the plan with one thing changed; sealed, its plan_id is right again."""
    document = plan.model_dump()
    change(document)
    changed = Plan.parse(document)
    if not seal:
        return changed
    return changed.model_copy(update={"plan_id": plan_id(changed.problem, changed.placement, changed.devices)})


def codes(plan: Plan) -> set[str]:
    return {violation.code for violation in validate(plan)}


@settings(deadline=None)
@given(problems(placements=ALL, limited=False), st.integers(0, 2**32))
def test_simulated_orders_are_legal_and_round_trip(problem: Problem, seed: int) -> None:
    plan = build(problem, seed)
    assert validate(plan) == []
    assert check(plan) is plan
    again = Plan.parse_json(plan.to_json())
    assert again == plan
    assert again.to_json() == plan.to_json()
    assert build(problem, seed).plan_id == plan.plan_id


def drop(document: dict[str, Any], device: int, at: int, other: int) -> None:
    for column in document["devices"][device].values():
        del column[at]


def duplicate(document: dict[str, Any], device: int, at: int, other: int) -> None:
    for column in document["devices"][device].values():
        column.append(column[at])


def swap(document: dict[str, Any], device: int, at: int, other: int) -> None:
    """Exchange two ops and leave the times where they are."""
    for name in ("kind", "stage", "microbatch"):
        column = document["devices"][device][name]
        column[at], column[other] = column[other], column[at]


def shorten(document: dict[str, Any], device: int, at: int, other: int) -> None:
    ops = document["devices"][device]
    ops["end_ms"][at] = ops["start_ms"][at]


def move(document: dict[str, Any], device: int, at: int, other: int) -> None:
    """Start an op before what it waited for; simulated ops start as early as they can."""
    ops = document["devices"][device]
    length = ops["end_ms"][at] - ops["start_ms"][at]
    ops["start_ms"][at] = ops["start_ms"][at] - 0.25
    ops["end_ms"][at] = ops["start_ms"][at] + length


@settings(deadline=None)
@given(
    problems(placements=ALL, limited=False),
    st.integers(0, 2**32),
    st.sampled_from([drop, duplicate, swap, shorten, move]),
)
def test_every_mutation_is_refused(problem: Problem, seed: int, mutate: Callable[..., None]) -> None:
    plan = build(problem, seed)
    rng = random.Random(seed)
    device = rng.randrange(problem.devices)
    ops = plan.devices[device]
    at, other = rng.randrange(len(ops.kind)), rng.randrange(len(ops.kind))
    if mutate is swap:
        one, two = [
            (ops.kind[i], ops.stage[i], ops.microbatch[i], ops.end_ms[i] - ops.start_ms[i]) for i in (at, other)
        ]
        assume(one[3] != two[3])
    if mutate is shorten:
        assume(ops.end_ms[at] > ops.start_ms[at])
    changed = altered(plan, lambda document: mutate(document, device, at, other))
    assert validate(changed) != []


def legal() -> Plan:
    """Two devices, two microbatches: B and W on stage 0, BW on stage 1."""
    profile = {"stages": 2, "t_f_ms": 2, "t_b_ms": 3, "t_w_ms": 1, "t_comm_ms": 0.5, "m_b_bytes": 4, "m_w_bytes": 1}
    fields = {"profile": profile, "devices": 2, "microbatches": 2, "placement": "linear", "memory_limit": [8, 4]}
    problem = Problem.parse(fields)
    code = problem.instance().code
    first = [code(F, 0, 0), code(F, 0, 1), code(B, 0, 0), code(W, 0, 0), code(B, 0, 1), code(W, 0, 1)]
    second = [code(F, 1, 0), code(BW, 1, 0), code(F, 1, 1), code(BW, 1, 1)]
    plan = Plan.build(problem, [[0], [1]], Orders.of([first, second]), method="by_hand")
    assert validate(plan) == []
    return plan


def put(device: int, name: str, at: int, value: object) -> Callable[[dict[str, Any]], None]:
    def change(document: dict[str, Any]) -> None:
        document["devices"][device][name][at] = value

    return change


def shift(device: int, at: int, by_ms: float) -> Callable[[dict[str, Any]], None]:
    def change(document: dict[str, Any]) -> None:
        for name in ("start_ms", "end_ms"):
            document["devices"][device][name][at] += by_ms

    return change


def put_at(*steps: Any, value: object) -> Callable[[dict[str, Any]], None]:
    def change(document: dict[str, Any]) -> None:
        inner: Any = document
        for step in steps[:-1]:
            inner = inner[step]
        inner[steps[-1]] = value

    return change


@pytest.mark.parametrize(
    ("code", "change"),
    [
        ("unknown_kind", put(0, "kind", 0, "R")),
        ("unknown_stage", put(0, "stage", 0, 2)),
        ("unknown_stage", put(0, "stage", 0, -1)),
        ("unknown_microbatch", put(0, "microbatch", 0, 2)),
        ("time_range", put(0, "start_ms", 0, -1.0)),
        ("time_range", put(0, "end_ms", 5, 1e300)),
        ("off_clock", put(1, "end_ms", 3, 18.0000000001)),
        ("wrong_device", put(0, "stage", 0, 1)),
        ("duplicate_op", put(0, "microbatch", 1, 0)),
        ("missing_op", put(0, "microbatch", 1, 0)),
        ("mixed_backward", put(0, "kind", 2, "BW")),
        ("wrong_duration", put(0, "end_ms", 5, 30.0)),
        ("overlap", shift(0, 1, -1.0)),
        ("transfer_ignored", shift(1, 0, -0.25)),
        ("forward_before_input", shift(1, 0, -1.0)),
        ("backward_before_forward", shift(1, 1, -1.0)),
        ("backward_before_gradient", shift(0, 2, -2.0)),
        ("weight_before_backward", shift(0, 3, -2.0)),
        ("column_length", put_at("devices", 0, "kind", value=["F"])),
        ("column_length", put_at("devices", value=[])),
        ("placement", put_at("placement", value=[[1], [0]])),
        ("placement", put_at("placement", value=[[0], [0]])),
        ("requires", put_at("requires", "microbatches", value=3)),
        ("key", put_at("key", value="0")),
        ("problem", put_at("problem", value={})),
        ("problem", put_at("problem", "profile", "name", value="x")),
        ("metrics", put_at("metrics", "iteration_ms", value=1.0)),
        ("metrics", put_at("metrics", "peak_bytes", 0, value=1.0)),
        ("bound", put_at("bound", "iteration_ms", value=1000.0)),
        ("bound", put_at("bound", "gap", value=0.5)),
        ("bound", put_at("bound", "proven_optimal", value=True)),
    ],
)
def test_each_way_of_being_wrong_has_its_name(code: str, change: Callable[[dict[str, Any]], None]) -> None:
    assert code in codes(altered(legal(), change))


def test_plan_id_must_be_that_of_the_ops() -> None:
    assert codes(altered(legal(), put_at("plan_id", value="0"), seal=False)) == {"plan_id"}


def test_memory_over_the_limit_says_where() -> None:
    plan = legal()
    tight = Problem.parse({**plan.problem, "memory_limit": [7.9, 4]})
    orders = plan.orders()
    (violation,) = validate(Plan.build(tight, plan.placement, orders, method="by_hand"))
    assert violation.code == "memory_limit"
    assert violation.path == "$.devices[0] op 1"
    assert "8.0 bytes" in violation.found
    assert "7.9 bytes" in violation.needed


def test_unsplittable_stage_runs_only_bw() -> None:
    plan = legal()
    fused = Problem.parse({**plan.problem, "profile": {**plan.problem["profile"], "splittable": [False, True]}})
    assert codes(Plan.build(fused, plan.placement, plan.orders(), method="by_hand")) == {"unsplittable_stage"}


def test_orders_that_wait_in_a_circle_are_refused_even_without_durations() -> None:
    """Zero times make any order's times legal, yet a runtime would hang."""
    profile = {"stages": 2, "t_f_ms": 0, "t_b_ms": 0, "t_w_ms": 0, "t_comm_ms": 0, "m_b_bytes": 1, "m_w_bytes": 1}
    problem = Problem.parse({"profile": profile, "devices": 2, "microbatches": 1, "placement": "linear"})
    code = problem.instance().code
    runs = [[code(F, 0, 0), code(BW, 0, 0)], [code(F, 1, 0), code(BW, 1, 0)]]
    plan = Plan.build(problem, [[0], [1]], Orders.of(runs), method="by_hand")

    def reverse(document: dict[str, Any]) -> None:
        document["devices"][1]["kind"].reverse()

    assert "deadlock" in codes(altered(plan, reverse))


def test_check_raises_with_all_violations() -> None:
    with pytest.raises(InvalidPlanError, match="unknown_kind"):
        check(altered(legal(), put(0, "kind", 0, "R")))
