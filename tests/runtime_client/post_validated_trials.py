"""What the post-validation tests train, by name: the same on all ranks and in both modes."""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from typing import Any

import torch
from torch import Tensor, nn, optim

from runtime_client.gradient_state import global_norm, state_of
from tests.runtime_client.models import WIDTH, Block, batch, mean_loss, text_stages
from tests.runtime_client.plans import one_f_one_b, random_plan, zb_h1
from zbplan.placement import v_shape
from zbplan.plan import Plan

RANKS = 4
STEPS = 12
ROWS = 8
MAX_NORM = 1.0

Parameters = list[nn.Parameter]
Tamper = Callable[[int, int, list[Tensor]], None]
"""Given step, rank and gradients: what the caller does to gradients between an iteration and its optimizer step."""


class Noisy(nn.Module):
    """A block behind dropout."""

    def __init__(self) -> None:
        super().__init__()
        self.dropout, self.block = nn.Dropout(0.2), Block()

    def forward(self, x: Tensor) -> Tensor:
        return self.block(self.dropout(x))


class Normalised(nn.Module):
    """A block behind a BatchNorm over the width."""

    def __init__(self) -> None:
        super().__init__()
        self.norm, self.block = nn.BatchNorm1d(WIDTH), Block()

    def forward(self, x: Tensor) -> Tensor:
        return self.block(self.norm(x.flatten(0, 1)).view_as(x))


def with_block(make: Callable[[], nn.Module]) -> Callable[[int], list[nn.Module]]:
    """Stages that each end their block's part with another module."""

    def build(stages: int) -> list[nn.Module]:
        built = text_stages(stages)
        for at, stage in enumerate(built):
            stage.insert(1 if at == 0 else 0, make())
        return built

    return build


def shared_on_one_device(stages: int) -> list[nn.Module]:
    """Embedding and head are one parameter: on a V, both are on device 0."""
    built = text_stages(stages)
    built[-1][-1].weight = built[0][0].weight
    return built


def alike_on_two_devices(stages: int) -> list[nn.Module]:
    """Embedding and head are two parameters that start alike: on a line, of device 0 and the last."""
    built = text_stages(stages)
    built[-1][-1].weight = nn.Parameter(built[0][0].weight.detach().clone())
    return built


def low_precision(stages: int) -> list[nn.Module]:
    return [stage.to(torch.bfloat16) for stage in text_stages(stages)]


def untouched(step: int, rank: int, gradients: list[Tensor]) -> None:
    """Leave the gradients as they are."""


def scaled_to(norms: Callable[[int, int], float]) -> Tamper:
    """Give the rank's gradients a norm."""

    def tamper(step: int, rank: int, gradients: list[Tensor]) -> None:
        norm = global_norm([state_of({0: gradients}, 2.0)], 2.0)
        for gradient in gradients:
            gradient.mul_(norms(step, rank) / norm)

    return tamper


def only_the_sum_clips(steps: Sequence[int]) -> Tamper:
    """Norm 0.6 on each of four ranks is 1.2 altogether."""
    return scaled_to(lambda step, rank: 0.6 if step in steps else 0.1)


def rank_1_clips(step: int, rank: int) -> float:
    return 5.0 if rank == 1 and step in (3, 7, 8) else 0.1


def set_one_value(value: float, steps: Sequence[int], ranks: Sequence[int]) -> Tamper:
    """Break one value of a rank's last gradient, after keeping clipping out of it."""

    def tamper(step: int, rank: int, gradients: list[Tensor]) -> None:
        scaled_to(lambda *_: 0.1)(step, rank, gradients)
        if step in steps and rank in ranks:
            gradients[-1].view(-1)[-1] = value

    return tamper


def adamw(parameters: Parameters) -> optim.Optimizer:
    return optim.AdamW(parameters, lr=0.01, weight_decay=0.1)


def two_groups(parameters: Parameters) -> optim.Optimizer:
    matrices = [parameter for parameter in parameters if parameter.dim() > 1]
    vectors = [parameter for parameter in parameters if parameter.dim() < 2]
    groups = [{"params": matrices, "weight_decay": 0.1}, {"params": vectors, "lr": 0.03, "betas": (0.8, 0.99)}]
    return optim.AdamW(groups, lr=0.01, weight_decay=0.0)


@dataclass(frozen=True)
class Trial:
    """One training run.

    Attributes
    ----------
    rollbacks
        How many of the last plan's steps must be taken back in mode "post_validated"; with another number the test
        would be about nothing.
    """

    rollbacks: int
    tamper: Tamper
    plan: Plan = field(default_factory=lambda: zb_h1(RANKS, 4))
    stages: Callable[[int], list[nn.Module]] = text_stages
    optimizer: Callable[[Parameters], optim.Optimizer] = adamw
    options: dict[str, Any] = field(default_factory=lambda: {"max_norm": MAX_NORM})
    masters: bool = False
    schedule_lr: bool = False
    iterations_per_step: int = 1
    set_to_none: bool = True
    tied: bool = False
    scaled_loss: bool = False
    saved_after: Sequence[int] = ()
    read_on_rank_0: bool = False
    evaluated_after: Sequence[int] = ()
    second_plan: tuple[int, Plan] | None = None
    autocast: bool = False
    rollback_limit: float = 1.0

    def batch(self, step: int) -> tuple[Tensor, Tensor]:
        return batch(ROWS, seed=step)

    def loss(self, output: Tensor, target: Tensor) -> Tensor:
        return mean_loss(output.float(), target)


EVERY = range(STEPS)
FORCED = only_the_sum_clips(EVERY)


def trials() -> dict[str, Trial]:
    """All trials, by name."""
    v = random_plan(v_shape(RANKS), 4, seed=1)
    rolled_back = STEPS
    sometimes = only_the_sum_clips((2, 3, 9))
    return {
        "no clip": Trial(0, scaled_to(lambda *_: 0.1)),
        "no rule at all": Trial(0, untouched, options={"check_finite": False}),
        "clip on one stage": Trial(3, scaled_to(rank_1_clips)),
        "clip on all stages": Trial(0, scaled_to(lambda *_: 3.0)),
        "clip only by the sum": Trial(3, sometimes),
        "gradients as they come": Trial(7, untouched, options={"max_norm": 0.6}),
        "inf-norm": Trial(3, scaled_to(rank_1_clips), options={"max_norm": 1.0, "norm_type": math.inf}),
        "3-norm": Trial(rolled_back, FORCED, options={"max_norm": 0.35, "norm_type": 3.0}),
        "NaN on one stage": Trial(3, set_one_value(math.nan, (0, 5, 11), [2])),
        "infinity on one stage": Trial(3, set_one_value(math.inf, (0, 5, 11), [1])),
        "NaN on all stages": Trial(0, set_one_value(math.nan, (0, 5, 11), range(RANKS))),
        "infinity on all but one, twice in a row": Trial(2, set_one_value(-math.inf, (4, 5), [0, 1, 2])),
        "NaN and no check": Trial(
            1, set_one_value(math.nan, (10,), [2]), options={"max_norm": 1.0, "check_finite": False}
        ),
        "several groups": Trial(3, sometimes, optimizer=two_groups),
        "learning-rate schedule": Trial(3, sometimes, schedule_lr=True),
        "schedule and groups, every step wrong": Trial(rolled_back, FORCED, optimizer=two_groups, schedule_lr=True),
        "every step wrong": Trial(rolled_back, FORCED),
        "Adam with AMSGrad": Trial(3, sometimes, optimizer=lambda p: optim.Adam(p, lr=0.01, amsgrad=True)),
        "SGD with momentum": Trial(
            rolled_back, FORCED, optimizer=lambda p: optim.SGD(p, lr=0.1, momentum=0.9, nesterov=True)
        ),
        "an optimizer that is not known": Trial(rolled_back, FORCED, optimizer=lambda p: optim.NAdam(p, lr=0.01)),
        "learning rate in a tensor": Trial(
            3, sometimes, optimizer=lambda p: optim.AdamW(p, lr=torch.tensor(0.01), foreach=False), schedule_lr=True
        ),
        "bfloat16 with float32 masters": Trial(3, sometimes, stages=low_precision, masters=True),
        "masters, every step wrong": Trial(rolled_back, FORCED, stages=low_precision, masters=True, schedule_lr=True),
        "bfloat16 without masters": Trial(3, sometimes, stages=low_precision),
        "dropout": Trial(rolled_back, FORCED, stages=with_block(Noisy)),
        "BatchNorm": Trial(rolled_back, FORCED, stages=with_block(Normalised)),
        "gradient accumulation": Trial(rolled_back, FORCED, iterations_per_step=2),
        "gradients cleared to zeros": Trial(rolled_back, FORCED, set_to_none=False, iterations_per_step=2),
        "V, tied on one device": Trial(rolled_back, FORCED, plan=v, stages=shared_on_one_device),
        "tied on two devices": Trial(rolled_back, FORCED, stages=alike_on_two_devices, tied=True),
        "loss scaler": Trial(2, set_one_value(math.inf, (4, 7), [1]), scaled_loss=True),
        "saved after every step": Trial(rolled_back, FORCED, saved_after=EVERY, schedule_lr=True),
        "saved now and then, with masters": Trial(
            5, only_the_sum_clips((1, 2, 5, 7, 8)), stages=low_precision, masters=True, saved_after=(2, 6, 9)
        ),
        "read by one rank after every step": Trial(rolled_back, FORCED, read_on_rank_0=True),
        "evaluated now and then": Trial(rolled_back, FORCED, evaluated_after=(3, 6)),
        "another plan from step 5 on": Trial(7, FORCED, second_plan=(5, one_f_one_b(RANKS, 4))),
        "autocast around iterations": Trial(rolled_back, FORCED, autocast=True),
        "too many steps wrong": Trial(6, FORCED, rollback_limit=0.05),
    }
