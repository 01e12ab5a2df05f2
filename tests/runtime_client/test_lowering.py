from __future__ import annotations

from collections.abc import Container

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from runtime_client.lowering import Action, execution_order, lower
from tests.runtime_client.plans import one_f_one_b, plan_of, problem_of, random_plan
from tests.strategies import problems, random_orders
from zbplan.errors import DeadlockError
from zbplan.placement import devices_of, linear
from zbplan.plan import Plan
from zbplan.problem import Problem

ALL = ("linear", "v", "interleaved")


def ops_of(plan: Plan, device: int) -> list[Action]:
    ops = plan.devices[device]
    return [Action(*row) for row in zip(ops.kind, ops.stage, ops.microbatch, strict=True)]


def ends_of(plan: Plan) -> dict[Action, float]:
    ops = [(action, device) for device in range(len(plan.devices)) for action in ops_of(plan, device)]
    ends = [end for columns in plan.devices for end in columns.end_ms]
    return {action: end for (action, _), end in zip(ops, ends, strict=True)}


def text(actions: list[Action]) -> str:
    return " ".join(f"{action.stage}{action.kind}{action.microbatch}" for action in actions)


def test_sends_follow_their_op_and_receives_stand_where_the_sender_is_done() -> None:
    # F takes 7 ms on stage 0 and 3 ms on stage 1, BW 8 and 7 ms: F of microbatch 1 is done during BW of microbatch 0.
    plan = one_f_one_b(2, 2)
    first, second = lower(plan)
    assert text(first) == "0F0 0SEND_F0 0F1 0SEND_F1 0RECV_B0 0BW0 0RECV_B1 0BW1"
    assert text(second) == "1RECV_F0 1F0 1RECV_F1 1BW0 1SEND_B0 1F1 1BW1 1SEND_B1"


def test_a_receive_is_posted_before_the_op_that_runs_when_the_sender_is_done() -> None:
    # F takes 1 ms on stage 0 and 10 ms on stage 1: all inputs arrive during F of microbatch 0.
    problem = problem_of(linear(2), 3, t_f_ms=[1, 10], t_comm_ms=0)
    second = lower(plan_of(problem, one_f_one_b(2, 3).orders()))[1]
    assert text(second).startswith("1RECV_F0 1RECV_F1 1F0")


@settings(deadline=None, max_examples=60)
@given(problems(placements=ALL, limited=False), st.integers(0, 2**32))
def test_each_device_runs_its_ops_in_the_order_of_the_plan(problem: Problem, seed: int) -> None:
    plan = plan_of(problem, random_orders(problem.instance(), seed))
    for device, actions in enumerate(lower(plan)):
        assert [action for action in actions if action.kind in ("F", "B", "W", "BW")] == ops_of(plan, device)


def producer_of(action: Action, ops: Container[Action]) -> Action:
    """Return the op whose tensor a transfer moves; an op is its own."""
    kind, stage, microbatch = action
    if "_" not in kind:
        return action
    source = {"RECV_F": stage - 1, "RECV_B": stage + 1}.get(kind, stage)
    fused = Action("BW", source, microbatch)
    return fused if kind.endswith("B") and fused in ops else Action(kind[-1], source, microbatch)


@settings(deadline=None, max_examples=60)
@given(problems(placements=ALL, limited=False), st.integers(0, 2**32))
def test_transfers_are_posted_in_the_order_of_predicted_time(problem: Problem, seed: int) -> None:
    plan = plan_of(problem, random_orders(problem.instance(), seed))
    ends = ends_of(plan)
    for actions in lower(plan):
        times = [ends[producer_of(action, ends)] for action in actions]
        assert times == sorted(times)


@settings(deadline=None, max_examples=60)
@given(problems(placements=ALL, limited=False), st.integers(0, 2**32))
def test_execution_order_is_one_that_a_single_process_could_run(problem: Problem, seed: int) -> None:
    plan = plan_of(problem, random_orders(problem.instance(), seed))
    sequence = execution_order(plan)
    assert [ends_of(plan)[action] for action in sequence] == sorted(ends_of(plan).values())
    at = {action: index for index, action in enumerate(sequence)}
    gradient = {(stage, microbatch): index for (kind, stage, microbatch), index in at.items() if kind in ("B", "BW")}
    for (kind, stage, microbatch), index in at.items():
        if kind == "F" and stage > 0:
            assert at[Action("F", stage - 1, microbatch)] < index
        if kind in ("B", "BW"):
            assert at[Action("F", stage, microbatch)] < index
            assert gradient.get((stage + 1, microbatch), -1) < index
        if kind == "W":
            assert gradient[stage, microbatch] < index
    for device in range(len(plan.devices)):
        own = [action for action in sequence if devices_of(plan.placement)[action.stage] == device]
        assert own == ops_of(plan, device)


def test_orders_that_wait_for_each_other_are_named() -> None:
    plan = random_plan(linear(2), 2, seed=0)
    columns = plan.devices[1].model_dump()
    turned = plan.devices[1].model_validate({name: values[::-1] for name, values in columns.items()})
    with pytest.raises(DeadlockError, match=r"device 1 at \w+\(stage 1, microbatch \d\) waits for \w\(stage 1"):
        execution_order(plan.model_copy(update={"devices": [plan.devices[0], turned]}))
