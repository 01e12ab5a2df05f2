"""Sleeping: stages whose F, B and W are sleeps, so that an iteration takes what was planned and what running adds."""

from __future__ import annotations

import os
import time
from collections.abc import Callable
from typing import Any

import torch
from torch import Tensor, nn

FLOATS = 1 << 16
"""256 KiB pass between stages, per microbatch."""

LATE_S = 2e-4
"""How late a sleep may end."""


class Sleeping(nn.Module):
    """A stage that sleeps for milliseconds; W adds to the gradients of all weights.

    Parameters
    ----------
    f_ms, b_ms, w_ms
        How long F, B and W sleep.
    weights
        The shape of each of its four weights.
    """

    def __init__(self, f_ms: float, b_ms: float, w_ms: float, weights: tuple[int, ...] = (1,)) -> None:
        super().__init__()
        self.f_ms, self.b_ms, self.w_ms = f_ms, b_ms, w_ms
        self.weights = nn.ParameterList(nn.Parameter(torch.zeros(weights)) for _ in range(4))

    def forward(self, x: Tensor) -> Tensor:
        """Sleep for F."""
        return _Sleep.apply(x, self.weights[0], self)

    def take(self) -> Callable[[], None]:
        """Return the W of a microbatch."""
        return self._weigh

    def _weigh(self) -> None:
        end = _in(self.w_ms)
        for weight in self.weights:
            weight.grad = torch.full_like(weight, 1e-6) if weight.grad is None else weight.grad.add_(1e-6)
        _sleep_until(end)


class _Sleep(torch.autograd.Function):
    @staticmethod
    def forward(ctx: Any, x: Tensor, weight: Tensor, stage: Sleeping) -> Tensor:
        end = _in(stage.f_ms)
        ctx.stage = stage
        y = x.clone()
        _sleep_until(end)
        return y

    @staticmethod
    def backward(ctx: Any, dy: Tensor) -> tuple[Tensor, None, None]:
        end = _in(ctx.stage.b_ms)
        dx = dy.clone()
        _sleep_until(end)
        return dx, None, None


def _in(milliseconds: float) -> float:
    return time.perf_counter() + milliseconds / 1e3


def _sleep_until(end: float) -> None:
    """Sleep, but for the last moment: a sleep alone ends late, which no device does."""
    time.sleep(max(0.0, end - time.perf_counter() - LATE_S))
    while time.perf_counter() < end:
        os.sched_yield()
