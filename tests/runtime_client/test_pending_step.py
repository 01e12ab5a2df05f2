from __future__ import annotations

from collections.abc import Callable

import pytest
import torch
from torch import nn, optim

from runtime_client import GradientNorm, OptimizerUseError
from runtime_client.gradient_state import GradientState
from runtime_client.pending_step import PendingStep
from runtime_client.validation import Exchange, Validation
from runtime_client.weights import Weights

pytestmark = pytest.mark.usefixtures("alone")


def exchange() -> Exchange:
    return Validation(None, [0, 1], timeout_s=10).begin(GradientState({0: 9.0, 1: 16.0}, finite=True))


@pytest.mark.parametrize(("norm_type", "norm"), [(2.0, 5.0), (1.0, 25.0), (float("inf"), 16.0)])
def test_the_handle_of_a_norm_resolves_to_the_norm(norm_type: float, norm: float) -> None:
    handle = GradientNorm(exchange(), norm_type)
    assert handle.result() == norm
    assert float(handle) == norm


def pending(module: nn.Module) -> PendingStep:
    module.weight.grad = torch.ones_like(module.weight)
    return PendingStep(exchange(), Weights(optim.SGD(module.parameters(), lr=0.1), [module]))


def test_gradients_that_stay_may_be_read() -> None:
    module = nn.Linear(2, 2)
    step = pending(module)
    module.weight.grad.norm()
    step.check_gradients()


@pytest.mark.parametrize(
    "change",
    [
        lambda module: module.zero_grad(),
        lambda module: module.zero_grad(set_to_none=False),
        lambda module: module(torch.ones(1, 2)).sum().backward(),
        lambda module: nn.utils.clip_grad_norm_(module.parameters(), 0.1),
    ],
    ids=["removed", "zeroed", "added to", "clipped"],
)
def test_gradients_that_do_not_stay_are_found(change: Callable[[nn.Module], None]) -> None:
    module = nn.Linear(2, 2)
    step = pending(module)
    change(module)
    with pytest.raises(OptimizerUseError, match="found 1 of 1 gradients changed between an optimizer step and its val"):
        step.check_gradients()
