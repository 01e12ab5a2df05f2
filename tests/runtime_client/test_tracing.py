from __future__ import annotations

import json
import time
from itertools import pairwise
from typing import Any

import pytest
import torch
import torch.distributed as dist
from torch import Tensor, nn

from runtime_client import OpError, PlanSchedule
from runtime_client.errors import JobMismatchError
from runtime_client.lowering import Action, lower, transfer_of
from runtime_client.tracing import KEPT_STEPS
from runtime_client.void_iteration import VoidIteration
from tests.processes import torchrun
from tests.runtime_client.models import WIDTH, batch, mean_loss, on_one_device, text_stages
from tests.runtime_client.plans import random_plan
from tests.runtime_client.tracing_worker import AHEAD_NS, PLANS, STEPS
from zbplan.placement import devices_of
from zbplan.trace import DeviceTrace, StepTrace, Trace
from zbplan.trace_report import report
from zbplan.verdict import verdict

MS_NS = 1e6


@pytest.fixture(scope="module")
def ranks(tmp_path_factory: pytest.TempPathFactory) -> list[dict[str, Any]]:
    """What each of two ranks found."""
    folder = tmp_path_factory.mktemp("ranks")
    run = torchrun(2, "tests.runtime_client.tracing_worker", str(folder))
    assert run.returncode == 0, run.output
    return [json.loads(path.read_text()) for path in sorted(folder.glob("*.json"))]


def steps_of(rank: dict[str, Any], name: str) -> list[StepTrace]:
    return [step for trace in rank[name] for step in Trace.parse(trace).steps]


def actions_of(device: DeviceTrace) -> list[Action]:
    return [Action(*span[:3]) for span in device.spans()]


def test_a_clock_that_is_ahead_is_found_within_the_error_that_is_told(ranks: list[dict[str, Any]]) -> None:
    for rank in ranks:
        assert rank["offsets"][0] == [0, 0]
        ahead, error = rank["offsets"][1]
        assert abs(ahead - AHEAD_NS) <= error + 1
        assert 0 < error < AHEAD_NS


@pytest.mark.parametrize("name", PLANS)
def test_every_rank_gets_the_same_trace_of_the_steps_since_the_last(ranks: list[dict[str, Any]], name: str) -> None:
    assert ranks[0][name] == ranks[1][name]
    first, later = map(Trace.parse, ranks[0][name])
    assert [step.step for step in first.steps] == [0]
    assert [step.step for step in later.steps] == [*range(1, STEPS)]
    assert first.plan_id == PLANS[name].plan_id
    assert first.environment == {"device": "cpu", "torch": torch.__version__, "overlap_grad_reduce": False}
    assert [step.tokens for step in later.steps] == [batch(8)[0].numel()] * (STEPS - 1)


@pytest.mark.parametrize("name", PLANS)
def test_every_op_and_transfer_is_there_once_in_the_order_of_the_plan(ranks: list[dict[str, Any]], name: str) -> None:
    plan = PLANS[name]
    device_of = devices_of(plan.placement)
    for step in steps_of(ranks[0], name):
        for device, (found, actions) in enumerate(zip(step.devices, lower(plan), strict=True)):
            ops = [action for action in actions if not action.is_transfer]
            assert [action for action in actions_of(found) if not action.is_transfer] == ops
            assert sorted(actions_of(found)) == sorted(actions)
            for action in ops:
                transfer = transfer_of(action, device_of)
                after = actions_of(found)[actions_of(found).index(action) + 1 :]
                assert transfer is None or transfer.source != device or transfer.send in after


@pytest.mark.parametrize("name", PLANS)
def test_rows_follow_each_other_within_their_step(ranks: list[dict[str, Any]], name: str) -> None:
    for step in steps_of(ranks[0], name):
        assert min(device.begin_ms for device in step.devices) == 0
        for device in step.devices:
            spans = device.spans()
            assert device.begin_ms <= spans[0].start_ms
            assert spans[-1].end_ms <= device.finish_ms
            assert all(before.end_ms <= after.start_ms for before, after in pairwise(spans))


@pytest.mark.parametrize("name", PLANS)
def test_steps_follow_each_other(ranks: list[dict[str, Any]], name: str) -> None:
    first, later = (Trace.parse(trace).steps for trace in ranks[0][name])
    assert [first[0].at_ms, later[0].at_ms] == [0, 0]
    for before, after in pairwise(later):
        assert before.at_ms + min(device.finish_ms for device in before.devices) <= after.at_ms


@pytest.mark.parametrize("name", PLANS)
def test_on_one_time_base_nothing_arrives_before_it_is_sent(ranks: list[dict[str, Any]], name: str) -> None:
    device_of = devices_of(PLANS[name].placement)
    for trace in map(Trace.parse, ranks[0][name]):
        slack_ms = sum(trace.clock_error_ms) + 1 / MS_NS
        for step in trace.steps:
            at = {Action(*span[:3]): span for device in step.devices for span in device.spans()}
            for action, span in at.items():
                transfer = transfer_of(action, device_of)
                if transfer is not None:
                    assert span.end_ms <= at[transfer.send].start_ms
                    assert at[transfer.send].start_ms <= at[transfer.receive].end_ms + slack_ms


@pytest.mark.parametrize("name", PLANS)
def test_what_a_job_notes_can_be_held_against_its_plan(ranks: list[dict[str, Any]], name: str) -> None:
    found = report(PLANS[name], Trace.parse(ranks[0][name][1]))
    assert (found.steps, found.is_warm) == (1, True)
    assert 0 < found.bubble_rate.measured < 1
    assert len(found.ops) == sum(len(ops.kind) for ops in PLANS[name].devices)
    for device in found.devices:
        whole_ms = device.ops_ms.measured + device.waiting_ms.measured + device.sending_ms + device.host_ms
        assert device.step_ms == pytest.approx(whole_ms)
    assert verdict(found)


@pytest.mark.parametrize(("scenario", "numbers"), [("no step", "[[], []]"), ("other steps", "[[0], [0, 1]]")])
def test_what_cannot_be_put_together_is_an_error_on_every_rank(
    ranks: list[dict[str, Any]], scenario: str, numbers: str
) -> None:
    needed = f"found steps {numbers} noted on the ranks; needed the same ones on all, and at least one"
    assert [rank[scenario] for rank in ranks] == [needed, needed]


def schedule_of(stages: list[nn.Module], **options: Any) -> PlanSchedule:
    plan = random_plan([list(range(len(stages)))], 4, 0)
    return PlanSchedule(on_one_device(stages), plan, options.pop("loss_fn", mean_loss), **options)


@pytest.mark.usefixtures("alone", "one_thread")
def test_a_schedule_that_notes_nothing_has_no_trace() -> None:
    schedule = schedule_of(text_stages(2))
    tokens, target = batch(8)
    schedule.step(tokens, target=target)
    with pytest.raises(
        JobMismatchError, match="rank 0: found a PlanSchedule that notes nothing; needed trace=True on every"
    ):
        schedule.trace()


@pytest.mark.usefixtures("alone", "one_thread")
def test_it_tells_whether_reductions_ran_beside_w() -> None:
    schedule = schedule_of(text_stages(1), trace=True, data_parallel_group=dist.group.WORLD, overlap_grad_reduce=True)
    tokens, target = batch(4)
    schedule.step(tokens, target=target)
    assert schedule.trace().environment["overlap_grad_reduce"] is True


@pytest.mark.usefixtures("alone", "one_thread")
def test_the_latest_steps_are_kept() -> None:
    schedule = schedule_of(text_stages(1), trace=True)
    tokens, target = batch(4)
    for _ in range(KEPT_STEPS + 2):
        schedule.step(tokens, target=target)
    assert [step.step for step in schedule.trace().steps] == list(range(2, KEPT_STEPS + 2))


@pytest.mark.usefixtures("alone", "one_thread")
def test_the_loss_is_the_end_of_its_f() -> None:
    loss_ms = 20

    def slow_loss(output: Tensor, target: Tensor) -> Tensor:
        time.sleep(loss_ms / 1e3)
        return mean_loss(output, target)

    schedule = schedule_of(text_stages(2), loss_fn=slow_loss, trace=True)
    tokens, target = batch(8)
    schedule.step(tokens, target=target)
    (device,) = schedule.trace().steps[0].devices
    assert device.kind.count("F") == 8
    assert min(span.end_ms - span.start_ms for span in device.spans() if span[:2] == ("F", 1)) >= loss_ms


@pytest.mark.usefixtures("alone", "one_thread")
def test_what_the_loss_waits_for_is_no_part_of_its_f() -> None:
    wait_ms = 20
    stages = text_stages(2)
    schedule = schedule_of(stages, trace=True)
    pending = [True]

    def settle() -> None:
        pending.clear()
        time.sleep(wait_ms / 1e3)

    schedule.guard = VoidIteration(stages, torch.device("cpu"), settle=settle, pending=lambda: bool(pending))
    tokens, target = batch(8)
    schedule.step(tokens, target=target)
    (device,) = schedule.trace().steps[0].devices
    spans = device.spans()
    first = next(at for at, span in enumerate(spans) if span[:2] == ("F", 1))
    assert spans[first + 1].start_ms - spans[first].end_ms >= wait_ms


@pytest.mark.usefixtures("alone", "one_thread")
def test_a_batch_that_is_no_text_has_no_tokens() -> None:
    schedule = schedule_of([nn.Linear(WIDTH, WIDTH)], loss_fn=nn.functional.mse_loss, trace=True)
    x = torch.randn(4, WIDTH)
    schedule.step(x, target=x)
    assert schedule.trace().steps[0].tokens is None


@pytest.mark.usefixtures("alone", "one_thread")
def test_a_step_that_fails_and_a_forward_only_one_are_not_noted() -> None:
    def loss(output: Tensor, target: Tensor) -> Tensor:
        if not target.any():
            raise ArithmeticError
        return mean_loss(output, target)

    schedule = schedule_of(text_stages(2), loss_fn=loss, trace=True)
    tokens, target = batch(8)
    schedule.step(tokens, target=target)
    schedule.eval(tokens)
    with pytest.raises(OpError):
        schedule.step(tokens, target=torch.zeros_like(target))
    schedule.step(tokens, target=target)
    assert [step.step for step in schedule.trace().steps] == [0, 1]


@pytest.mark.usefixtures("alone", "one_thread")
@pytest.mark.parametrize("known", ["before its first op", "at its first backward"])
def test_an_iteration_that_turns_out_to_be_void_is_not_noted(known: str) -> None:
    stages = text_stages(2)
    schedule = schedule_of(stages, trace=True)
    pending = [True]

    def settle() -> None:
        pending.clear()
        iteration.due = True

    iteration = VoidIteration(stages, torch.device("cpu"), settle=settle, pending=lambda: bool(pending))
    if known == "before its first op":
        settle()
    schedule.guard = iteration
    tokens, target = batch(8)
    schedule.step(tokens, target=target)
    schedule.step(tokens, target=target)
    trace = schedule.trace()
    assert [step.step for step in trace.steps] == [0, 1]
    ops = [action for action in lower(schedule.plan)[0] if not action.is_transfer]
    assert [actions_of(step.devices[0]) for step in trace.steps] == [ops, ops]
