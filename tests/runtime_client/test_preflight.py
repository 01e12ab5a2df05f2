from __future__ import annotations

import copy
from typing import Any

import pytest
import torch
from torch import Tensor, nn
from torch.distributed.fsdp import FullyShardedDataParallel
from torch.nn.parallel import DistributedDataParallel
from torch.utils.checkpoint import checkpoint

from runtime_client import (
    JobMismatchError,
    PlanSchedule,
    UnsplitStageWarning,
    UntrainedStageWarning,
    WeightsInBWarning,
    reference_step,
)
from runtime_client.preflight import obstacle, refusals
from tests.runtime_client.models import attending_stages, batch, mean_loss, on_one_device, text_stages
from tests.runtime_client.plans import one_f_one_b, plan_of, problem_of, random_plan
from zbplan.instance import BW, F, Orders
from zbplan.plan import Plan

pytestmark = pytest.mark.usefixtures("alone", "one_thread")


def plan_of_bw(stages: int) -> Plan:
    """One device, without W."""
    problem = problem_of([list(range(stages))], 4)
    ops = [(kind, stage) for kind, order in ((F, range(stages)), (BW, range(stages)[::-1])) for stage in order]
    return plan_of(problem, Orders.of([[problem.instance().code(*op, at) for at in range(4) for op in ops]]))


def compiled(module: nn.Module) -> nn.Module:
    return torch.compile(module, backend="aot_eager")


def compiled_in_place(module: nn.Module) -> nn.Module:
    module.compile(backend="aot_eager")
    return module


def compiled_inside(module: nn.Module) -> nn.Module:
    module.append(compiled(nn.Identity()))
    return module


@pytest.mark.filterwarnings("ignore:FSDP is switching", "ignore::FutureWarning")
@pytest.mark.parametrize(
    ("wrapper", "options"),
    [(DistributedDataParallel, {}), (FullyShardedDataParallel, {"device_id": torch.device("cpu")})],
)
def test_a_wrapper_that_reduces_too_early_is_refused_wherever_it_stands(wrapper: Any, options: dict[str, Any]) -> None:
    outside, inside = text_stages(2)
    inside.append(wrapper(nn.Linear(17, 17), **options))
    stages = on_one_device([DistributedDataParallel(outside), inside])
    found = list(refusals(stages))
    assert found[0].startswith("stage 0 is wrapped in DistributedDataParallel, which averages gradients before W has")
    assert found[1].startswith(f"stage 1, module '3', is wrapped in {wrapper.__name__}, which ")
    assert "needed the bare module, with FSDP2" in found[1]
    with pytest.raises(JobMismatchError, match="stage 0 is wrapped in DistributedDataParallel"):
        PlanSchedule(stages, random_plan([[0, 1]], 4, 0), mean_loss)


@pytest.mark.parametrize(
    ("make", "why"),
    [
        (compiled, "it is wrapped by torch.compile"),
        (compiled_in_place, "it is compiled in place by module.compile()"),
        (compiled_inside, "module '3' is wrapped by torch.compile"),
    ],
)
def test_each_form_of_compile_is_found(make: Any, why: str) -> None:
    assert obstacle(make(text_stages(2)[1])) == why
    assert obstacle(text_stages(2)[1]) is None


@pytest.mark.filterwarnings("ignore::DeprecationWarning", "ignore::FutureWarning")
@pytest.mark.parametrize("make", [compiled, compiled_in_place])
def test_a_compiled_stage_trains_as_another_with_bw_in_place_of_b(make: Any) -> None:
    plan, (tokens, target) = random_plan([[0, 1]], 4, 0), batch(8)
    stages, plain = text_stages(2), text_stages(2)
    stages[1] = make(stages[1])
    with pytest.warns(UnsplitStageWarning, match="stage 1: it is .*compile.*B runs all of it.*splittable to false"):
        schedule = PlanSchedule(on_one_device(stages), plan, mean_loss)
    schedule.step(tokens, target=target)
    reference_step(plain, plan, mean_loss, tokens, target=target)
    for found, needed in zip(stages, plain, strict=True):
        pairs = zip(found.parameters(), needed.parameters(), strict=True)
        torch.testing.assert_close(*zip(*((a.grad, b.grad) for a, b in pairs), strict=True))


def test_a_plan_that_splits_nothing_has_nothing_to_warn_of() -> None:
    PlanSchedule(on_one_device([compiled(text_stages(1)[0])]), one_f_one_b(1, 4), mean_loss)


class Fused(torch.autograd.Function):
    """A matrix product that makes both gradients itself."""

    @staticmethod
    def forward(ctx: Any, x: Tensor, weight: Tensor) -> Tensor:
        ctx.save_for_backward(x, weight)
        return x @ weight

    @staticmethod
    def backward(ctx: Any, dy: Tensor) -> tuple[Tensor, Tensor]:
        x, weight = ctx.saved_tensors
        return dy @ weight.t(), torch.einsum("bti,btj->ij", x, dy)


class FusedLinear(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.weight = nn.Parameter(torch.randn(17, 17))

    def forward(self, x: Tensor) -> Tensor:
        return Fused.apply(x, self.weight)


def test_weights_of_a_custom_function_are_right_and_said_to_be_in_b() -> None:
    torch.manual_seed(0)
    plan, (tokens, target) = random_plan([[0, 1]], 4, 0), batch(8)
    stages = text_stages(2)
    stages[1].append(FusedLinear())
    plain = copy.deepcopy(stages)
    schedule = PlanSchedule(on_one_device(stages), plan, mean_loss)
    with pytest.warns(WeightsInBWarning, match=r"stage 1: the gradients of 3.weight \(Fused\) are made in B"):
        schedule.step(tokens, target=target)
    schedule.step(tokens, target=target)  # says it once
    for _ in range(2):
        reference_step(plain, plan, mean_loss, tokens, target=target)
    assert torch.equal(stages[1][3].weight.grad, plain[1][3].weight.grad)


def test_weights_of_torchs_attention_that_w_does_not_get_are_named() -> None:
    plan, (tokens, target) = random_plan([[0]], 4, 0), batch(8)
    schedule = PlanSchedule(on_one_device(attending_stages(1)), plan, mean_loss)
    named = (
        r"1\.attention\.in_proj_weight \(MultiheadAttention\), 1\.attention\.out_proj\.weight \(MultiheadAttention\)"
    )
    with pytest.warns(WeightsInBWarning, match=f"stage 0: the gradients of {named} are made in B"):
        schedule.step(tokens, target=target)


class Checkpointed(nn.Module):
    """Keeps nothing of what its inner module computes, and counts how often that runs."""

    def __init__(self, inner: nn.Module, *, reentrant: bool) -> None:
        super().__init__()
        self.inner, self.reentrant, self.runs = inner, reentrant, 0

    def forward(self, x: Tensor) -> Tensor:
        return checkpoint(self._run, x, use_reentrant=self.reentrant)

    def _run(self, x: Tensor) -> Tensor:
        self.runs += 1
        return self.inner(x)


def test_a_checkpointed_stage_is_split_with_one_recomputation_and_the_same_bits() -> None:
    plan, (tokens, target) = random_plan([[0, 1]], 4, 0), batch(8)
    stages, plain = text_stages(2), text_stages(2)
    stages[1] = Checkpointed(stages[1], reentrant=False)
    schedule = PlanSchedule(on_one_device(stages), plan, mean_loss)
    schedule.step(tokens, target=target)
    stages[1].runs = 0
    nn.ModuleList(stages).zero_grad()
    schedule.step(tokens, target=target)
    assert stages[1].runs == 2 * 4  # one F and one recomputation per microbatch: W has none of its own
    reference_step(plain, plan, mean_loss, tokens, target=target)
    for found, needed in zip(nn.ModuleList(stages).parameters(), nn.ModuleList(plain).parameters(), strict=True):
        assert torch.equal(found.grad, needed.grad)


def test_reentrant_checkpointing_is_refused_in_the_first_forward() -> None:
    stages, (tokens, target) = text_stages(2), batch(8)
    stages[1] = nn.Sequential(Checkpointed(stages[1], reentrant=True), nn.Identity())
    schedule = PlanSchedule(on_one_device(stages), random_plan([[0, 1]], 4, 0), mean_loss)
    with pytest.raises(
        JobMismatchError, match=r"stage 1 is checkpointed with use_reentrant=True.*needed use_reentrant=F"
    ):
        schedule.step(tokens, target=target)


@pytest.mark.filterwarnings("ignore:None of the inputs have requires_grad")
@pytest.mark.parametrize("plan", [random_plan([[0, 1]], 4, 0), plan_of_bw(2)])
def test_a_stage_that_reentrant_checkpointing_leaves_untrained_is_said_to_be(plan: Plan) -> None:
    stages, (tokens, target) = text_stages(2), batch(8)
    stages[0] = Checkpointed(stages[0], reentrant=True)  # token ids need no gradient
    schedule = PlanSchedule(on_one_device(stages), plan, mean_loss)
    with pytest.warns(UntrainedStageWarning, match=r"stage 0: found an output that no .* use_reentrant=False"):
        schedule.step(tokens, target=target)


def test_a_frozen_stage_is_not_said_to_be_untrained() -> None:
    stages, (tokens, target) = text_stages(2), batch(8)
    stages[0].requires_grad_(False)
    PlanSchedule(on_one_device(stages), random_plan([[0, 1]], 4, 0), mean_loss).step(tokens, target=target)


CHANGES = {
    "longer": (lambda tokens: tokens.repeat(1, 2), r"shape \[8, 10\] and torch.int64"),
    "of another type": (lambda tokens: tokens.int(), r"shape \[8, 5\] and torch.int32"),
}


@pytest.mark.parametrize("change", CHANGES)
def test_a_shape_that_changes_after_the_first_step_is_refused(change: str) -> None:
    schedule = PlanSchedule(on_one_device(text_stages(1)), random_plan([[0]], 4, 0), mean_loss)
    tokens, target = batch(8)
    schedule.step(tokens, target=target)
    changed, found = CHANGES[change]
    with pytest.raises(JobMismatchError, match=rf"found args\[0\] of {found}; needed shape \[8, 5\] and torch.int64"):
        schedule.step(changed(tokens), target=target)
    schedule.step(tokens, target=target)
