from __future__ import annotations

import copy
import math
from collections.abc import Callable
from typing import Any

import pytest
import torch
from torch import Tensor, nn, optim

from runtime_client import OptimizerUseError, master_weights
from runtime_client.speculation import (
    Preview,
    Snapshot,
    Speculation,
    hyperparameters,
    speculation_for,
    with_hyperparameters,
)
from runtime_client.weights import Weights

Make = Callable[[list[nn.Parameter]], optim.Optimizer]

OPTIMIZERS: dict[str, Make] = {
    "AdamW": lambda p: optim.AdamW(p, lr=0.01),
    "AdamW, one by one": lambda p: optim.AdamW(p, lr=0.01, foreach=False, amsgrad=True, maximize=True),
    "AdamW, fused": lambda p: optim.AdamW(p, lr=0.01, fused=True),
    "Adam": lambda p: optim.Adam(p, lr=0.01, weight_decay=0.1),
    "SGD": lambda p: optim.SGD(p, lr=0.1),
    "SGD with momentum": lambda p: optim.SGD(p, lr=0.1, momentum=0.9, dampening=0.1),
    "NAdam": lambda p: optim.NAdam(p, lr=0.01),
    "two groups": lambda p: optim.AdamW([{"params": p[:2]}, {"params": p[2:], "lr": 0.3, "betas": (0.5, 0.6)}]),
}


def weights_of(make: Make, *, masters: bool = False) -> Weights:
    torch.manual_seed(0)
    module = nn.Sequential(nn.Linear(5, 300), nn.LayerNorm(300), nn.Linear(300, 3))
    module[0].bias.requires_grad_(False)
    if masters:
        module.to(torch.bfloat16)
    parameters = [parameter for parameter in module.parameters() if parameter.requires_grad]
    pairs = master_weights(parameters) if masters else None
    return Weights(make(list(pairs.values()) if pairs else parameters), [module], pairs)


def give_gradients(weights: Weights, seed: int) -> None:
    generator = torch.Generator().manual_seed(seed)
    for weight in weights:
        weight.used.grad = torch.randn(weight.used.shape, generator=generator).to(weight.used.dtype)


def everything(weights: Weights) -> list[Any]:
    tensors = [tensor.detach().clone() for weight in weights for tensor in weight]
    return [tensors, copy.deepcopy(weights.optimizer.state_dict())]


def assert_same(found: Any, needed: Any) -> None:
    torch.testing.assert_close(found, needed, rtol=0, atol=0, equal_nan=True)


def trained(make: Make, masters: bool, steps: int) -> tuple[Weights, Speculation]:
    weights = weights_of(make, masters=masters)
    for step in range(steps):
        give_gradients(weights, step)
        weights.step()
    give_gradients(weights, steps)
    return weights, speculation_for(weights)


every_way = pytest.mark.parametrize(
    ("name", "masters", "steps"),
    [(name, masters, steps) for name in OPTIMIZERS for masters in (False, True) for steps in (0, 3)],
)


@every_way
def test_what_was_advanced_is_taken_back_to_the_last_bit(name: str, masters: bool, steps: int) -> None:
    weights, speculation = trained(OPTIMIZERS[name], masters, steps)
    before = everything(weights)
    speculation.advance()
    assert not torch.equal(next(iter(weights)).used, before[0][0])
    speculation.take_back()
    assert_same(everything(weights), before)


@every_way
def test_the_weights_advance_to_what_the_step_makes_of_them(name: str, masters: bool, steps: int) -> None:
    weights, speculation = trained(OPTIMIZERS[name], masters, steps)
    plain, _ = trained(OPTIMIZERS[name], masters, steps)
    plain.step()
    speculation.advance()
    assert_same([weight.used for weight in weights], [weight.used for weight in plain])
    speculation.confirm()
    assert_same(everything(weights), everything(plain))


@pytest.mark.parametrize("value", [math.nan, math.inf])
def test_even_a_step_by_nan_is_taken_back(value: float) -> None:
    weights, speculation = trained(OPTIMIZERS["AdamW"], False, 2)
    before = everything(weights)
    next(iter(weights)).used.grad[0] = value
    speculation.advance()
    assert next(iter(weights)).used.isnan().any()
    speculation.take_back()
    assert_same(everything(weights), before)


def undo_adamw(parameter: Tensor, state: dict[str, Any], group: dict[str, Any]) -> tuple[Tensor, Tensor, Tensor]:
    """Algorithm 1 of the paper: the step's arithmetic, backwards."""
    (beta_1, beta_2), lr, step = group["betas"], group["lr"], float(state["step"])
    m, v, gradient = state["exp_avg"], state["exp_avg_sq"], parameter.grad
    denominator = (v / (1 - beta_2**step)).sqrt() + group["eps"]
    moved = parameter.detach() + lr * (m / (1 - beta_1**step)) / denominator
    before = moved / (1 - lr * group["weight_decay"])
    return before, (m - (1 - beta_1) * gradient) / beta_1, (v - (1 - beta_2) * gradient**2) / beta_2


def undone(value: float | None = None) -> list[float]:
    """Share of weights and moments that are not what they were, after one step by arithmetic and back."""
    weights, _ = trained(OPTIMIZERS["AdamW"], False, 10)
    weight = next(iter(weights)).used
    if value is not None:
        weight.grad.fill_(value)
    state = weights.optimizer.state[weight]
    before = [weight.detach().clone(), state["exp_avg"].clone(), state["exp_avg_sq"].clone()]
    weights.step()
    after = undo_adamw(weight, state, weights.optimizer.param_groups[0])
    return [float((found != needed).float().mean()) for found, needed in zip(after, before, strict=True)]


def test_the_published_inverse_is_not_used_because_it_is_not_exact() -> None:
    parameters, first, second = undone()
    assert parameters > 0.01
    assert first > 0.1
    assert second > 0.1
    assert undone(math.nan) == undone(math.inf) == [1.0, 1.0, 1.0]


def test_known_optimizers_keep_at_most_a_copy_of_the_weights() -> None:
    weights, speculation = trained(OPTIMIZERS["AdamW"], False, 1)
    speculation.advance()
    assert isinstance(speculation, Preview)
    assert speculation.kept_bytes == 4 * sum(weight.used.numel() for weight in weights)
    largest = max(weight.used.numel() for weight in weights)
    assert speculation.passing_bytes <= 2 * 4 * largest + 4  # two moments and a counter of one weight


def test_masters_keep_nothing() -> None:
    _, speculation = trained(OPTIMIZERS["AdamW"], True, 1)
    speculation.advance()
    assert speculation.kept_bytes == 0


def test_an_optimizer_that_is_not_known_keeps_everything() -> None:
    _, speculation = trained(OPTIMIZERS["NAdam"], False, 1)
    assert isinstance(speculation, Snapshot)
    speculation.advance()
    assert speculation.kept_bytes > 0


class Counting(optim.SGD):
    """Keeps a counter in its groups, as some optimizers do."""

    def step(self, closure: None = None) -> None:
        self.param_groups[0]["count"] = self.param_groups[0].get("count", 0) + 1
        super().step(closure)


def test_an_optimizer_that_changes_its_groups_is_refused() -> None:
    weights, _ = trained(lambda p: Counting([{"params": p, "count": 0}], lr=0.1), False, 0)
    with pytest.raises(OptimizerUseError, match="found that Counting changes its parameter groups"):
        speculation_for(weights).advance()


def test_hooks_of_the_optimizer_see_the_confirmed_step_only() -> None:
    weights, speculation = trained(OPTIMIZERS["AdamW"], False, 1)
    seen: list[str] = []
    weights.optimizer.register_step_pre_hook(lambda *_: seen.append("before"))
    weights.optimizer.register_step_post_hook(lambda *_: seen.append("after"))
    speculation.advance()
    assert seen == []
    speculation.confirm()
    assert seen == ["before", "after"]


def test_weights_without_gradient_stay() -> None:
    weights, speculation = trained(OPTIMIZERS["AdamW"], False, 1)
    kept, *_ = weights
    kept.used.grad = None
    before = kept.used.detach().clone()
    speculation.advance()
    assert torch.equal(kept.used, before)
    speculation.confirm()
    assert torch.equal(kept.used, before)


def test_learning_rates_of_an_earlier_time_hold_inside_the_block_only() -> None:
    optimizer = optim.AdamW([torch.zeros(1)], lr=torch.tensor(0.5), betas=(0.1, 0.2), foreach=False)
    then = hyperparameters(optimizer)
    group = optimizer.param_groups[0]
    group["lr"].fill_(0.25)
    group["betas"] = (0.3, 0.4)
    lr = group["lr"]
    with with_hyperparameters(optimizer, then):
        assert (float(group["lr"]), group["betas"]) == (0.5, (0.1, 0.2))
    assert group["lr"] is lr
    assert (float(lr), group["betas"]) == (0.25, (0.3, 0.4))
