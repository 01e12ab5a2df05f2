"""Stages whose F, B and W are sleeps and allocations of known size."""

from __future__ import annotations

import os
import time
from collections.abc import Callable, Iterable
from itertools import cycle
from typing import Any

import torch
from torch import Tensor, nn

from profiler import LayeredModel, StagedModel

F_MS, B_MS, W_MS = 20.0, 30.0, 15.0
HELD, KEPT = 1000, 300
"""Bytes held from F to B, and from B to W, beside input and output."""

WIDTH = 16
"""Floats of an input, an output and their gradients."""


class Emulated(nn.Module):
    """Sleeps through its ops; like a Linear, it is split by leaving the weight gradient to a queue.

    ``jitter`` stretches one op after the other.
    """

    def __init__(self, *, first_ms: float = 0.0, factor: float = 1.0, jitter: Iterable[float] = (1.0,)) -> None:
        super().__init__()
        self.weight = nn.Parameter(torch.ones(1))
        self.first_ms = first_ms
        self.factor = factor
        self.jitter = cycle(jitter)
        self.queue: list[Tensor] | None = None

    def forward(self, x: Tensor) -> Tensor:
        if self.first_ms:  # a sleep of no time gives up the core all the same
            sleep(self.first_ms)
            self.first_ms = 0.0
        self.sleep(F_MS)
        return _Op.apply(x, self.weight, self)

    def sleep(self, milliseconds: float) -> None:
        sleep(self.factor * next(self.jitter) * milliseconds)


class _Op(torch.autograd.Function):
    @staticmethod
    def forward(ctx: Any, x: Tensor, weight: Tensor, stage: Emulated) -> Tensor:
        ctx.save_for_backward(x)  # as a norm does
        ctx.held, ctx.stage = torch.empty(HELD, dtype=torch.uint8), stage
        return x.clone()

    @staticmethod
    def backward(ctx: Any, dy: Tensor) -> tuple[Tensor | None, ...]:
        stage = ctx.stage
        stage.sleep(B_MS)
        dx = dy.clone() if ctx.needs_input_grad[0] else None
        if stage.queue is None:
            if ctx.needs_input_grad[1]:
                stage.sleep(W_MS)
            return dx, torch.ones(1) if ctx.needs_input_grad[1] else None, None
        stage.queue.append(torch.empty(KEPT, dtype=torch.uint8))
        return dx, None, None


def split(module: nn.Module) -> Callable[[], Callable[[], None]]:
    """Split the backward of the one emulated stage in a module."""
    (stage,) = (inner for inner in module.modules() if isinstance(inner, Emulated))
    stage.queue = []

    def take() -> Callable[[], None]:
        pending, stage.queue = stage.queue, []

        def run() -> None:
            stage.sleep(W_MS)
            gradient = torch.ones(1)
            stage.weight.grad = gradient if stage.weight.grad is None else stage.weight.grad + gradient
            pending.clear()

        return run

    return take


def model(stages: list[nn.Module], **options: Any) -> StagedModel:
    """Any stages on a row of floats."""
    options = {"optimizer": sgd, "name": "emulated"} | options
    return StagedModel(stages=stages, microbatch=(torch.ones(WIDTH),), target=None, loss=loss, **options)


def staged_model(count: int) -> StagedModel:
    """Emulated stages, each a tenth slower than the one before."""
    return model([Emulated(factor=1 + stage / 10) for stage in range(count)])


def layers(parts: list[Any]) -> LayeredModel:
    """Any layers on a row of floats."""
    return LayeredModel(
        layers=parts, microbatch=(torch.ones(WIDTH),), target=None, loss=loss, optimizer=sgd, name="emulated"
    )


def layered_model() -> LayeredModel:
    """Four emulated layers, the first of them slower."""
    return layers([Emulated(factor=2.0), Emulated(), Emulated(), Emulated()])


def sharded_model(count: int) -> StagedModel:
    """Stages that take three times as long on odd ranks."""
    return model([Emulated(factor=1 + 2 * (int(os.environ["RANK"]) % 2)) for _ in range(count)])


def broken_model(count: int) -> StagedModel:
    """The same, but the last stage fails in B."""
    return model([*(Emulated() for _ in range(count - 1)), Broken()])


def leaving_model(count: int) -> StagedModel:
    """The same, but the process that holds the last stage ends in B."""
    return model([*(Emulated() for _ in range(count - 1)), Leaving()])


def scattered_model(count: int) -> StagedModel:
    """Stages whose ops take 70 to 130 % of their time, by turns."""
    return model([Emulated(jitter=(0.7, 1.0, 1.3, 0.7, 1.3)) for _ in range(count)])


class Leaving(nn.Module):
    """Ends its process in B."""

    def __init__(self) -> None:
        super().__init__()
        self.weight = nn.Parameter(torch.ones(1))

    def forward(self, x: Tensor) -> Tensor:
        output: Tensor = x * self.weight
        output.register_hook(lambda _: os._exit(0))
        return output


class Broken(nn.Module):
    """Fails in B."""

    def __init__(self) -> None:
        super().__init__()
        self.weight = nn.Parameter(torch.ones(1))

    def forward(self, x: Tensor) -> Tensor:
        y = x * self.weight
        if y.requires_grad:
            y.register_hook(_fail)
        return y


def _fail(gradient: Tensor) -> None:
    raise RuntimeError("a hook said no")


def sgd(parameters: list[nn.Parameter]) -> torch.optim.Optimizer:
    return torch.optim.SGD(parameters, lr=0.1)


def loss(output: Tensor, target: None) -> Tensor:
    return output.sum()


def sleep(milliseconds: float) -> None:
    time.sleep(milliseconds / 1e3)
