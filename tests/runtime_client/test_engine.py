"""What the runtime relies on in torch's private parts, on a pipeline of one device."""

from __future__ import annotations

import copy
import inspect
from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager, contextmanager, nullcontext
from typing import Any

import pytest
import torch
from torch import Tensor, nn
from torch.distributed.pipelining import PipelineStage, schedules
from torch.multiprocessing.reductions import StorageWeakRef

from runtime_client import OpError, PlanSchedule, reference_step
from runtime_client.lowering import Action
from tests.runtime_client.models import WIDTH, batch, mean_loss, on_one_device, sum_loss, text_stages, tied_stages
from tests.runtime_client.plans import plan_of, problem_of, random_plan
from zbplan.instance import BW, KINDS, B, F, Orders, W
from zbplan.plan import Plan

Loss = Callable[[Tensor, Tensor], Tensor]

pytestmark = pytest.mark.usefixtures("alone", "one_thread")


def schedule_of(stages: list[nn.Module], plan: Plan, loss_fn: Loss = mean_loss, **options: Any) -> PlanSchedule:
    return PlanSchedule(on_one_device(stages), plan, loss_fn, **options)


def gradients(stages: list[nn.Module]) -> list[Tensor]:
    return [parameter.grad for stage in stages for parameter in stage.parameters()]


def plain_gradients(stages: list[nn.Module], tokens: Tensor, target: Tensor, loss_fn: Loss) -> list[Tensor]:
    """Return the gradients of the whole batch without a pipeline."""
    loss_fn(nn.Sequential(*stages)(tokens), target).backward()
    return gradients(stages)


def backwards_plan(microbatches: int, stages: int = 2) -> Plan:
    """Run microbatches from the last to the first, all F before all backward ops."""
    problem = problem_of([list(range(stages))], microbatches)
    code = problem.instance().code
    order = list(range(microbatches))[::-1]
    ops = [code(F, stage, microbatch) for stage in range(stages) for microbatch in order]
    ops += [code(kind, stage, microbatch) for stage in range(stages)[::-1] for kind in (B, W) for microbatch in order]
    return plan_of(problem, Orders.of([ops]))


def test_losses_and_outputs_belong_to_their_microbatch_whatever_the_order_of_f() -> None:
    stages = text_stages(2)
    tokens, target = batch(6)
    with torch.no_grad():
        outputs = nn.Sequential(*text_stages(2))(tokens)
    losses: list[Tensor] = []
    found = schedule_of(stages, backwards_plan(3)).step(tokens, target=target, losses=losses, return_outputs=True)
    torch.testing.assert_close(found, outputs)
    needed = [mean_loss(*pair) for pair in zip(outputs.chunk(3), target.chunk(3), strict=True)]
    torch.testing.assert_close(torch.stack(losses), torch.stack(needed))
    torch.testing.assert_close(gradients(stages), plain_gradients(text_stages(2), tokens, target, mean_loss))


@pytest.mark.parametrize("microbatches", [1, 4, 8])
@pytest.mark.parametrize(("loss_fn", "mean"), [(mean_loss, True), (sum_loss, False)])
def test_gradients_are_those_of_the_whole_batch_for_every_number_of_microbatches(
    microbatches: int, loss_fn: Callable[..., Tensor], mean: bool
) -> None:
    stages, (tokens, target) = text_stages(3), batch(8)
    schedule_of(stages, random_plan([[0, 1, 2]], microbatches, 0), loss_fn, scale_grads=mean).step(
        tokens, target=target
    )
    torch.testing.assert_close(gradients(stages), plain_gradients(text_stages(3), tokens, target, loss_fn))


def test_gradients_of_two_steps_add_up_without_being_scaled_again() -> None:
    stages, plain = text_stages(2), text_stages(2)
    schedule = schedule_of(stages, random_plan([[0, 1]], 4, 1))
    for step in range(2):
        tokens, target = batch(4, seed=step)
        schedule.step(tokens, target=target)
        expected = plain_gradients(plain, tokens, target, mean_loss)
    torch.testing.assert_close(gradients(stages), expected)


def test_a_weight_that_two_stages_of_a_device_share_is_scaled_once() -> None:
    stages, plain, (tokens, target) = tied_stages(3), tied_stages(3), batch(8)
    plan = random_plan([[0, 1, 2]], 4, 2)
    schedule_of(stages, plan).step(tokens, target=target)
    torch.testing.assert_close(gradients(stages), plain_gradients(tied_stages(3), tokens, target, mean_loss))
    reference_step(plain, plan, mean_loss, tokens, target=target)
    assert all(map(torch.equal, gradients(stages), gradients(plain)))


class OutOfReach(nn.Module):
    """Adds a row that does not depend on the stage's input."""

    def __init__(self, inner: nn.Module) -> None:
        super().__init__()
        self.inner, self.made = inner, nn.Linear(WIDTH, WIDTH)

    def forward(self, x: Tensor) -> Tensor:
        return self.inner(x + self.made(torch.ones(WIDTH)))


def test_parameters_out_of_reach_of_the_stage_input_get_their_gradient() -> None:
    def build() -> list[nn.Module]:
        stages = text_stages(3)
        stages[1] = OutOfReach(stages[1])
        return stages

    stages, (tokens, target) = build(), batch(8)
    schedule_of(stages, random_plan([[0, 1, 2]], 4, 3)).step(tokens, target=target)
    torch.testing.assert_close(gradients(stages), plain_gradients(build(), tokens, target, mean_loss))


def test_a_later_plan_takes_over_the_stages_of_an_earlier_one() -> None:
    plain, stages = text_stages(2), on_one_device(text_stages(2))
    for step in range(3):
        plan, (tokens, target) = random_plan([[0, 1]], 4, step), batch(8, seed=step)
        PlanSchedule(stages, plan, mean_loss).step(tokens, target=target)
        reference_step(plain, plan, mean_loss, tokens, target=target)
    found = gradients([stage.submod for stage in stages])
    assert all(map(torch.equal, found, gradients(plain)))


class Failing(nn.Module):
    """Fails in the forward, or at the end of the backward, of one call; call 1 is the first step's shape inference."""

    def __init__(self, inner: nn.Module, *, call: int, backward: bool) -> None:
        super().__init__()
        self.inner, self.call, self.backward, self.calls = inner, call, backward, 0

    def forward(self, x: Tensor) -> Tensor:
        self.calls += 1
        if self.calls == self.call:
            if not self.backward:
                raise ArithmeticError("out of luck")
            x = x.clone()
            x.register_hook(self._fail)
        return self.inner(x)

    @staticmethod
    def _fail(gradient: Tensor) -> Tensor:
        raise ArithmeticError("out of luck")


@pytest.mark.parametrize(("backward", "kind"), [(False, "F"), (True, "B")])
def test_an_op_that_fails_is_named_and_the_step_after_is_right(backward: bool, kind: str) -> None:
    stages, plain = text_stages(2), text_stages(2)
    stages[1] = Failing(stages[1], call=3, backward=backward)
    tokens, target = batch(6)
    plan = backwards_plan(3)
    schedule = schedule_of(stages, plan)
    with pytest.raises(OpError) as caught:
        schedule.step(tokens, target=target)
    assert caught.value.rank == 0
    assert caught.value.op == f"{kind}(stage 1, microbatch 1)"
    assert "ArithmeticError: out of luck" in str(caught.value)
    nn.Sequential(*stages).zero_grad()
    schedule.step(tokens, target=target)
    reference_step(plain, plan, mean_loss, tokens, target=target)
    assert all(map(torch.equal, gradients(stages), gradients(plain)))


def test_a_loss_that_fails_is_named() -> None:
    def fail(output: Tensor, target: Tensor) -> Tensor:
        if len(output) == 2 and not target.any():
            raise ArithmeticError("no target")
        return mean_loss(output, target)

    tokens, target = batch(6)
    target[2:4] = 0
    with pytest.raises(OpError, match=r"LOSS\(stage 1, microbatch 1\): found ArithmeticError: no target"):
        schedule_of(text_stages(2), backwards_plan(3), fail).step(tokens, target=target)


class Watched(nn.Module):
    """Keeps weak references to the memory of what its Linear works on."""

    def __init__(self) -> None:
        super().__init__()
        self.first, self.linear = nn.Linear(WIDTH, WIDTH), nn.Linear(WIDTH, WIDTH)
        self.seen: list[StorageWeakRef] = []

    def forward(self, x: Tensor) -> Tensor:
        hidden = torch.tanh(self.first(x))
        self.seen.append(StorageWeakRef(hidden.untyped_storage()))
        return self.linear(hidden)

    def alive(self) -> int:
        return sum(not seen.expired() for seen in self.seen)


def test_activations_live_until_w_and_those_of_bw_until_bw() -> None:
    problem = problem_of([[0]], 3)
    code = problem.instance().code
    ops = [(F, 0), (F, 1), (F, 2), (BW, 1), (B, 0), (B, 2), (W, 2), (W, 0)]
    plan = plan_of(problem, Orders.of([[code(kind, 0, microbatch) for kind, microbatch in ops]]))
    watched, alive = Watched(), {}
    schedule = PlanSchedule(on_one_device([watched]), plan, nn.functional.mse_loss)
    x, target = torch.randn(3, WIDTH), torch.randn(3, WIDTH)
    schedule.step(x, target=target)
    watched.seen.clear()

    def counting(action: Action) -> AbstractContextManager[None]:
        alive[action.kind, action.microbatch] = watched.alive()
        return nullcontext()

    with schedule.observed(counting):
        schedule.step(x, target=target)
    assert [alive[KINDS[kind], microbatch] for kind, microbatch in ops] == [0, 1, 2, 3, 2, 2, 2, 1]
    assert watched.alive() == 0


def test_bw_gives_a_weight_its_gradient_at_once_and_b_does_not() -> None:
    problem = problem_of([[0]], 2)
    code = problem.instance().code
    ops = [(F, 0), (F, 1), (BW, 0), (B, 1), (W, 1)]
    plan = plan_of(problem, Orders.of([[code(kind, 0, microbatch) for kind, microbatch in ops]]))
    module, seen = nn.Linear(WIDTH, WIDTH), []
    schedule = PlanSchedule(on_one_device([module]), plan, nn.functional.mse_loss)
    x, target = torch.randn(2, WIDTH), torch.randn(2, WIDTH)
    schedule.step(x, target=target)

    @contextmanager
    def counting(action: Action) -> Iterator[None]:
        before = module.weight.grad.clone()
        yield
        seen.append((action.kind, not torch.equal(before, module.weight.grad)))

    with schedule.observed(counting):
        schedule.step(x, target=target)
    schedule.step(x, target=target)
    assert seen == [
        ("F", False),
        ("LOSS", False),
        ("F", False),
        ("LOSS", False),
        ("BW", True),
        ("B", False),
        ("W", True),
    ]


def test_the_gradient_of_the_first_step_holds_nothing_of_the_shape_inference() -> None:
    # torch runs each stage forward and backward on made-up tensors before the first step.
    stages, again = text_stages(2), text_stages(2)
    plan, (tokens, target) = backwards_plan(3), batch(6)
    first, second = schedule_of(stages, plan), schedule_of(again, plan)
    first.step(tokens, target=target)
    second.step(*batch(6, seed=5)[:1], target=target)
    nn.Sequential(*again).zero_grad()
    second.step(tokens, target=target)
    assert all(map(torch.equal, gradients(stages), gradients(again)))


class Noisy(nn.Module):
    """Depends on random numbers, and keeps running statistics."""

    def __init__(self) -> None:
        super().__init__()
        self.linear, self.norm, self.drop = nn.Linear(WIDTH, WIDTH), nn.BatchNorm1d(WIDTH), nn.Dropout(0.5)

    def forward(self, x: Tensor) -> Tensor:
        return self.drop(self.norm(self.linear(x)))


@pytest.mark.parametrize("forward_only_first", [False, True])
def test_the_shape_inference_leaves_no_trace_in_running_statistics_and_random_numbers(forward_only_first: bool) -> None:
    torch.manual_seed(0)
    stages = [Noisy() for _ in range(2)]
    plain, plan = copy.deepcopy(stages), backwards_plan(2)
    schedule = schedule_of(stages, plan, nn.functional.mse_loss)
    x, target = torch.randn(8, WIDTH), torch.randn(8, WIDTH)
    torch.manual_seed(1)
    if forward_only_first:
        schedule.eval(x, return_outputs=False)
    losses: list[Tensor] = []
    schedule.step(x, target=target, losses=losses)
    torch.manual_seed(1)
    if forward_only_first:
        with torch.no_grad():
            rows = x.chunk(2)[::-1]
            for stage in plain:
                rows = [stage(each) for each in rows]
    needed = reference_step(plain, plan, nn.functional.mse_loss, x, target=target)
    assert torch.equal(torch.stack(losses), torch.stack(needed))
    for found, buffer in zip(nn.ModuleList(stages).buffers(), nn.ModuleList(plain).buffers(), strict=True):
        assert torch.equal(found, buffer)


class Scaled(nn.Module):
    """Takes a factor per row beside its input."""

    def __init__(self) -> None:
        super().__init__()
        self.linear = nn.Linear(WIDTH, WIDTH)

    def forward(self, x: Tensor, factor: Tensor) -> Tensor:
        return self.linear(x) * factor


def test_keyword_arguments_reach_every_stage_of_the_rank_cut_as_the_batch_is() -> None:
    torch.manual_seed(0)
    stages = [Scaled(), Scaled()]
    plain = copy.deepcopy(stages)
    x, factor, target = torch.randn(6, WIDTH), torch.arange(1.0, 7).unsqueeze(1), torch.randn(6, WIDTH)
    schedule_of(stages, backwards_plan(3), nn.functional.mse_loss).step(x, target=target, factor=factor)
    nn.functional.mse_loss(plain[1](plain[0](x, factor), factor), target).backward()
    torch.testing.assert_close(gradients(stages), gradients(plain))


def test_receives_are_never_put_off() -> None:
    # torch's defer_pp_recv reorders them against the sends, silently, wherever a rank holds two stages.
    assert not getattr(schedule_of(text_stages(2), backwards_plan(3))._engine, "_defer_pp_recv", False)


def test_a_forward_only_step_may_stand_before_between_and_behind_others() -> None:
    stages, plain, plan = text_stages(2), text_stages(2), backwards_plan(3)
    schedule = schedule_of(stages, plan)
    for step in range(3):
        tokens, target = batch(6, seed=step)
        losses: list[Tensor] = []
        outputs = schedule.eval(tokens, target=target, losses=losses)
        assert not outputs.requires_grad
        torch.testing.assert_close(outputs, nn.Sequential(*plain)(tokens))
        torch.testing.assert_close(torch.stack(losses).mean(), mean_loss(outputs, target))
        schedule.step(tokens, target=target)
        reference_step(plain, plan, mean_loss, tokens, target=target)
    assert schedule.eval(tokens, return_outputs=False) is None
    assert all(map(torch.equal, gradients(stages), gradients(plain)))


def test_a_forward_only_step_keeps_nothing_of_a_microbatch_that_is_through() -> None:
    watched, alive = Watched(), []
    schedule = schedule_of([watched, nn.Identity()], random_plan([[0, 1]], 8, 0), nn.functional.mse_loss)
    watched.register_forward_pre_hook(lambda *_: alive.append(watched.alive()))
    schedule.eval(torch.randn(8, WIDTH), return_outputs=False)
    assert max(alive) == 0


def test_stages_hold_no_buffers_between_steps() -> None:
    stages = on_one_device(text_stages(2))
    schedule = PlanSchedule(stages, backwards_plan(3), mean_loss)
    tokens, target = batch(6)
    schedule.step(tokens, target=target)
    assert [stage.args_recv_info | stage.grad_recv_info | stage.fwd_cache for stage in stages] == [{}, {}]


@pytest.mark.parametrize(
    ("owner", "name", "needed"),
    [
        (schedules._PipelineScheduleRuntime, "_prepare_schedule_with_comms", ["actions", "format"]),
        (schedules._PipelineScheduleRuntime, "_maybe_compute_loss", ["stage", "output", "target_mbs", "mb_index"]),
        (schedules._PipelineScheduleRuntime, "_maybe_get_loss", ["stage", "mb_index"]),
        (schedules._PipelineScheduleRuntime, "_update_losses", ["stages", "losses"]),
        (schedules._PipelineScheduleRuntime, "_merge_outputs", ["output_chunks"]),
        (schedules._PipelineScheduleRuntime, "_initialize_stages", ["args", "kwargs"]),
        (PipelineStage, "get_fwd_recv_ops", ["fwd_chunk_id"]),
        (PipelineStage, "get_bwd_recv_ops", ["bwd_chunk_id"]),
        (PipelineStage, "get_fwd_send_ops", ["fwd_chunk_id"]),
        (PipelineStage, "get_bwd_send_ops", ["bwd_chunk_id"]),
        (PipelineStage, "set_local_bwd_input", ["next_stage_bwd_outputs", "mb_index"]),
        (PipelineStage, "forward_one_chunk", ["fwd_chunk_id"]),
        (PipelineStage, "backward_one_chunk", ["bwd_chunk_id", "loss", "full_backward", "last_backward"]),
        (PipelineStage, "backward_weight_one_chunk", ["bwd_chunk_id", "last_backward"]),
    ],
)
def test_torch_has_the_methods_that_the_engine_overrides(owner: type, name: str, needed: list[str]) -> None:
    parameters = list(inspect.signature(getattr(owner, name)).parameters)[1:]
    assert parameters[: len(needed)] == needed
