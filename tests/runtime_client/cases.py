"""What the parity tests train: a plan, stages, a loss; the ranks and the single process build the same from a name."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from dataclasses import dataclass

import torch
from torch import Tensor, nn, optim

from tests.runtime_client.models import (
    attending_stages,
    batch,
    frozen_stages,
    mean_loss,
    sliced_stages,
    sum_loss,
    text_stages,
    tied_stages,
    transposed_stages,
    tupled_stages,
)
from tests.runtime_client.plans import one_f_one_b, random_plan, zb_h1
from zbplan.placement import interleaved, linear, v_shape
from zbplan.plan import Plan

TORCH = tuple(map(int, torch.__version__.split("+")[0].split(".")[:2]))
STEPS = 5
ROWS = 2


@dataclass(frozen=True)
class Case:
    plan: Plan
    stages: Callable[[int], list[nn.Module]] = text_stages
    mean: bool = True

    @property
    def loss_fn(self) -> Callable[[Tensor, Tensor], Tensor]:
        return mean_loss if self.mean else sum_loss

    def batch(self, step: int) -> tuple[Tensor, Tensor]:
        return batch(ROWS * self.plan.requires.microbatches, seed=step)

    def build(self) -> list[nn.Module]:
        return self.stages(self.plan.requires.stages)


def cases(ranks: int) -> dict[str, Case]:
    """All cases for a number of ranks, by name."""
    placements = {
        "linear": linear(ranks),
        "v": v_shape(ranks),
        "interleaved": interleaved(ranks, 2),
        "adjacent stages on a device": [[2 * rank, 2 * rank + 1] for rank in range(ranks)],
        "lopsided": [[0, ranks, ranks + 1], *([rank] for rank in range(1, ranks))],
    }
    built = {
        f"{name}, {microbatches} microbatches": Case(random_plan(placement, microbatches, seed=microbatches))
        for name, placement in placements.items()
        for microbatches in (1, 3, 8)
    }
    built |= {
        "zb_h1": Case(zb_h1(ranks, 8)),
        "zb_h1, sum": Case(zb_h1(ranks, 3), mean=False),
        "1f1b": Case(one_f_one_b(ranks, 8)),
        "no durations": Case(random_plan(v_shape(ranks), 3, seed=7, t_f_ms=0, t_b_ms=0, t_w_ms=0, t_comm_ms=0)),
        "unsplittable stage 0": Case(random_plan(linear(ranks), 4, seed=8, splittable=[False] + [True] * (ranks - 1))),
        "torch's attention": Case(random_plan(linear(ranks), 4, seed=15), attending_stages),
        "tied embedding and head on one device": Case(random_plan(v_shape(ranks), 4, seed=9), tied_stages),
        **{f"random W {seed}": Case(random_plan(linear(ranks), 5, seed)) for seed in range(10, 13)},
    }
    if ranks == 1:
        built["tied embedding and head in one stage"] = Case(random_plan(linear(1), 4, seed=9), tied_stages)
    if ranks > 1:
        built["transposed between stages"] = Case(random_plan(linear(ranks), 4, seed=13), transposed_stages)
        built["sliced between stages"] = Case(random_plan(v_shape(ranks), 4, seed=14), sliced_stages)
        built["frozen"] = Case(random_plan(linear(ranks), 4, seed=12), frozen_stages)
    if ranks > 1 and TORCH >= (2, 13):  # before, torch wants a gradient of every tensor between stages
        built["tuples"] = Case(random_plan(linear(ranks), 4, seed=10), tupled_stages)
    return built


def optimizer_of(stages: Iterable[nn.Module]) -> optim.Optimizer:
    parameters = {parameter: None for stage in stages for parameter in stage.parameters() if parameter.requires_grad}
    return optim.SGD(list(parameters) or [torch.zeros(1)], lr=0.1, momentum=0.9)


def snapshot(stages: dict[int, nn.Module], optimizer: optim.Optimizer) -> dict[str, Tensor]:
    """Weights, gradients and optimizer state by stage and name."""
    found: dict[str, Tensor] = {}
    for index, stage in stages.items():
        for name, parameter in stage.named_parameters():
            found[f"{index}.{name}"] = parameter.detach().clone()
            if parameter.grad is not None:
                found[f"{index}.{name}.grad"] = parameter.grad.clone()
                found[f"{index}.{name}.momentum"] = optimizer.state[parameter]["momentum_buffer"].clone()
    return found
