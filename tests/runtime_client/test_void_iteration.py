from __future__ import annotations

import math
import warnings
from collections.abc import Callable
from typing import Any

import pytest
import torch
from torch import Tensor, nn

from runtime_client import OptimizerUseError, PlanSchedule, ValidationError
from runtime_client.void_iteration import VoidIteration
from tests.runtime_client.models import WIDTH, mean_loss, on_one_device, text_stages
from tests.runtime_client.models import batch as batch_of
from tests.runtime_client.plans import random_plan

pytestmark = pytest.mark.usefixtures("alone", "one_thread")

CPU = torch.device("cpu")


class Overruled:
    """A last step that turns out to be wrong at its validation."""

    def __init__(self, stages: list[nn.Module], **options: Any) -> None:
        self.pending = True
        self.iteration = VoidIteration(stages, CPU, settle=self.settle, pending=lambda: self.pending)
        self.schedule = PlanSchedule(
            on_one_device(stages), random_plan([list(range(len(stages)))], 4, 0), options.get("loss_fn", mean_loss)
        )
        self.schedule.guard = self.iteration
        self.weights = [parameter for stage in stages for parameter in stage.parameters()]

    def settle(self) -> None:
        """Make the step again: other weights than those that this iteration has started from."""
        self.pending, self.iteration.due = False, True
        with torch.autograd._unsafe_preserve_version_counter(tuple(self.weights)), torch.no_grad():
            for weight in self.weights:
                weight.mul_(0.5)


def run(stages: list[nn.Module], tokens: Tensor, target: Tensor, **options: Any) -> tuple[list[Tensor], Overruled]:
    overruled = Overruled(stages, **options)
    losses: list[Tensor] = []
    overruled.schedule.step(tokens, target=target, losses=losses)
    return losses, overruled


def right(tokens: Tensor, target: Tensor) -> tuple[list[Tensor], list[Tensor]]:
    """Losses and gradients of an iteration that starts from the right weights."""
    stages = text_stages(2)
    with torch.no_grad():
        for parameter in nn.ModuleList(stages).parameters():
            parameter.mul_(0.5)
    losses: list[Tensor] = []
    PlanSchedule(on_one_device(stages), random_plan([[0, 1]], 4, 0), mean_loss).step(
        tokens, target=target, losses=losses
    )
    return losses, [parameter.grad for parameter in nn.ModuleList(stages).parameters()]


def test_losses_and_gradients_are_those_of_the_right_weights() -> None:
    stages, (tokens, target) = text_stages(2), batch_of(8)
    losses, _ = run(stages, tokens, target)
    needed, gradients = right(tokens, target)
    assert all(map(torch.equal, losses, needed))
    found = [parameter.grad for parameter in nn.ModuleList(stages).parameters()]
    assert all(map(torch.equal, found, gradients))


def test_gradients_that_were_there_are_added_to_once() -> None:
    stages, (tokens, target) = text_stages(2), batch_of(8)
    parameters = list(nn.ModuleList(stages).parameters())
    for parameter in parameters[::2]:
        parameter.grad = torch.full_like(parameter, 1e6)
    run(stages, tokens, target)
    _, gradients = right(tokens, target)
    for at, (parameter, gradient) in enumerate(zip(parameters, gradients, strict=True)):
        torch.testing.assert_close(parameter.grad, gradient + (1e6 if at % 2 == 0 else 0))


def test_the_callers_loss_is_not_asked_about_a_void_attempt() -> None:
    asked: list[float] = []

    def loss_fn(output: Tensor, target: Tensor) -> Tensor:
        loss = mean_loss(output, target)
        asked.append(float(loss.detach()))
        return loss

    tokens, target = batch_of(8)
    losses, _ = run(text_stages(2), tokens, target, loss_fn=loss_fn)
    # What comes before the four microbatches is the shape inference of the first step.
    assert sorted(asked[-4:]) == sorted(map(float, losses))
    assert len(asked) <= 5


class Poisoned(nn.Module):
    """Makes gradients NaN while a flag is up."""

    def __init__(self, inner: nn.Module, poisoned: Callable[[], bool]) -> None:
        super().__init__()
        self.inner, self.poisoned = inner, poisoned

    def forward(self, x: Tensor) -> Tensor:
        y = self.inner(x)
        return y * (y - y).sqrt() if self.poisoned() else y


def test_anomaly_checks_look_away_from_a_void_attempt_and_back_again() -> None:
    # The forward under the wrong weights makes something whose gradient is NaN.
    stages, (tokens, target) = text_stages(2), batch_of(8)
    overruled: list[Overruled] = []
    stages[0] = Poisoned(stages[0], lambda: bool(overruled) and overruled[0].pending)
    overruled.append(Overruled(stages))
    overruled[0].pending = False
    overruled[0].schedule.step(tokens, target=target)  # the shapes are known from here on
    nn.ModuleList(stages).zero_grad()
    overruled[0].pending = True
    with warnings.catch_warnings():
        warnings.filterwarnings("ignore", "Anomaly Detection", UserWarning)
        detecting = torch.autograd.detect_anomaly()
    with detecting:
        overruled[0].schedule.step(tokens, target=target)
        assert torch.is_anomaly_enabled()
    assert not any(parameter.grad.isnan().any() for parameter in nn.ModuleList(stages).parameters())


def test_casts_of_the_wrong_weights_are_not_used_again() -> None:
    tokens, target = batch_of(8)
    with torch.autocast("cpu", dtype=torch.bfloat16):
        losses, _ = run(text_stages(2), tokens, target)
    with torch.autocast("cpu", dtype=torch.bfloat16):
        needed, _ = right(tokens, target)
    assert all(map(torch.equal, losses, needed))


def test_whoever_keeps_something_by_a_weights_version_sees_it_change() -> None:
    stages, (tokens, target) = text_stages(2), batch_of(8)
    parameters = list(nn.ModuleList(stages).parameters())
    versions = [parameter._version for parameter in parameters]
    run(stages, tokens, target)
    assert all(parameter._version > version for parameter, version in zip(parameters, versions, strict=True))


def test_an_iteration_with_nothing_pending_runs_once() -> None:
    stages, (tokens, target) = text_stages(2), batch_of(8)
    overruled = Overruled(stages)
    overruled.pending = False
    before = [weight.detach().clone() for weight in overruled.weights]
    overruled.schedule.step(tokens, target=target)
    assert all(map(torch.equal, overruled.weights, before))


class InPlace(nn.Module):
    """Changes what it is given."""

    def __init__(self, inner: nn.Module) -> None:
        super().__init__()
        self.inner = inner

    def forward(self, x: Tensor) -> Tensor:
        return self.inner(x.add_(0).clone())


def test_a_stage_that_changes_its_batch_is_found_in_the_first_iteration() -> None:
    stages = [InPlace(nn.Linear(WIDTH, WIDTH))]
    overruled = Overruled(stages, loss_fn=nn.functional.mse_loss)
    overruled.pending = False
    with pytest.raises(OptimizerUseError, match=r"found args\[0\] changed in place by a stage; needed a batch"):
        overruled.schedule.step(torch.ones(8, WIDTH), target=torch.ones(8, WIDTH))


@pytest.mark.parametrize("error", [ValidationError(0, 2, RuntimeError("closed")), OptimizerUseError("changed")])
def test_what_keeps_a_step_from_being_validated_is_no_error_of_the_op_that_asked(error: Exception) -> None:
    overruled = Overruled(text_stages(2))

    def settle() -> None:
        raise error

    overruled.iteration._settle = settle
    tokens, target = batch_of(8)
    with pytest.raises(type(error)) as caught:
        overruled.schedule.step(tokens, target=target)
    assert caught.value is error


def test_an_attempt_that_fails_leaves_nothing_void() -> None:
    def loss_fn(output: Tensor, target: Tensor) -> Tensor:
        return mean_loss(output, target)

    stages, (tokens, target) = text_stages(2), batch_of(8)
    overruled = Overruled(stages, loss_fn=loss_fn)
    overruled.pending = False
    overruled.schedule.step(tokens, target=target)
    kept = [weight.grad for weight in overruled.weights]
    overruled.iteration.due = True
    handle = stages[1].register_full_backward_hook(lambda *_: math.log(-1))
    with pytest.raises(Exception, match="domain"):
        overruled.schedule.step(tokens, target=target)
    handle.remove()
    assert not overruled.iteration.void
    assert [id(weight.grad) for weight in overruled.weights] == list(map(id, kept))
