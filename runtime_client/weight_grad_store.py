"""The weight-gradient store: nn.Linear computes its input gradient in B and its weight gradient later, in W.

A Linear that is attached behaves as before wherever nothing is recorded. While a store records, the Linear's backward
returns dX at once and queues dY with x; ``take`` hands the queue over as the function that is W. Everything that is
no Linear (norm gains, embeddings) gets its gradient in B. This is the ``dw_builder`` contract of
``torch.distributed.pipelining.PipelineStage``.
"""

from __future__ import annotations

import types
from collections import defaultdict
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any, NamedTuple

import torch
from torch import Tensor, nn
from torch.autograd.function import once_differentiable
from torch.nn import functional


class _Pending(NamedTuple):
    """A gradient to come: dYᵀ·x for a weight, the sum of dY for a bias (``x`` is None)."""

    parameter: nn.Parameter
    dy: Tensor
    x: Tensor | None

    def gradient(self) -> Tensor:
        gradient = self.dy.sum(0) if self.x is None else self.dy.t().mm(self.x)
        return gradient.to(self.parameter.dtype)


class WeightGradStore:
    """Queues the weight gradients of the microbatch whose B runs, and runs them in its W."""

    def __init__(self, *, recording: bool = False) -> None:
        self._queue: list[_Pending] = []
        self._recording = recording

    def attach(self, module: nn.Module) -> None:
        """Route every Linear of a module through this store, in place; parameters and state dict stay as they are."""
        for linear in _linears(module):
            linear.forward = types.MethodType(_forward_through(self), linear)

    @contextmanager
    def recording(self, on: bool = True) -> Iterator[None]:
        """Queue weight gradients inside the block; with ``on=False`` compute them at once, as for BW."""
        before, self._recording = self._recording, on
        try:
            yield
        finally:
            self._recording = before

    def take(self) -> Callable[[], None]:
        """Return the W of what was queued since the last call: it runs once, and frees each tensor as it goes."""
        pending, self._queue = self._queue, []
        by_parameter: dict[int, list[_Pending]] = defaultdict(list)
        for entry in pending:
            by_parameter[id(entry.parameter)].append(entry)
        return lambda: _accumulate(by_parameter)

    def discard(self) -> None:
        """Drop what a backward that failed has left."""
        self._queue.clear()

    def gradients(self, entries: list[_Pending | None]) -> list[Tensor | None]:
        """Queue entries while recording and return nothing for them; otherwise return their gradients."""
        if not self._recording:
            return [entry and entry.gradient() for entry in entries]
        self._queue += filter(None, entries)
        return [None] * len(entries)


def split(module: nn.Module) -> Callable[[], Callable[[], None]]:
    """Split the backward of a module, in place, for good, and return its ``dw_builder``.

    For a stage that stands alone, as the profiler measures it: ``splitter=runtime_client.split``.
    """
    store = WeightGradStore(recording=True)
    store.attach(module)
    return store.take


def deferred_parameters(module: nn.Module) -> list[nn.Parameter]:
    """Return the weights and biases whose gradient waits for W."""
    owned = [(linear.weight, linear.bias) for linear in _linears(module)]
    return [
        parameter
        for weight, bias in owned
        if _can_wait(weight, bias)
        for parameter in (weight, bias)
        if parameter is not None and parameter.requires_grad
    ]


def _linears(module: nn.Module) -> list[nn.Linear]:
    """Return the Linears whose forward no subclass has changed."""
    return [
        linear
        for linear in module.modules()
        if isinstance(linear, nn.Linear) and type(linear).forward is nn.Linear.forward
    ]


def _can_wait(weight: Tensor, bias: Tensor | None) -> bool:
    """Tell whether a Linear's gradients can wait: not where its weight is frozen, or computed by a parametrization."""
    return weight.requires_grad and weight.is_leaf and (bias is None or bias.is_leaf)


def _accumulate(by_parameter: dict[int, list[_Pending]]) -> None:
    """Add to each parameter's gradient the sum over its uses, in the order in which autograd would add them."""
    with torch.no_grad():
        while by_parameter:
            _, uses = by_parameter.popitem()
            parameter, total = uses[0].parameter, uses[0].gradient()
            for use in uses[1:]:
                total += use.gradient()
            if parameter.grad is None:
                parameter.grad = total
            else:
                parameter.grad += total


def _forward_through(store: WeightGradStore) -> Callable[[nn.Linear, Tensor], Tensor]:
    def forward(linear: nn.Linear, x: Tensor) -> Tensor:
        weight, bias = linear.weight, linear.bias
        if not (torch.is_grad_enabled() and _can_wait(weight, bias)):
            return functional.linear(x, weight, bias)
        if torch.is_autocast_enabled(x.device.type):
            x = x.to(torch.get_autocast_dtype(x.device.type))
        return _DeferredLinear.apply(x, weight, bias, store)

    return forward


class _DeferredLinear(torch.autograd.Function):
    """functional.linear whose weight gradient goes through a store; bit for bit what autograd computes."""

    @staticmethod
    def forward(ctx: Any, x: Tensor, weight: nn.Parameter, bias: nn.Parameter | None, store: WeightGradStore) -> Tensor:
        ctx.save_for_backward(x, weight)
        # What is saved may come back as another tensor (checkpointing); the gradient belongs to these very objects.
        ctx.weight, ctx.bias, ctx.store = weight, bias, store
        return functional.linear(x, weight, bias)

    @staticmethod
    @once_differentiable
    def backward(ctx: Any, dy: Tensor) -> tuple[Tensor | None, ...]:
        x, weight = ctx.saved_tensors
        rows = dy.reshape(-1, dy.shape[-1])
        dx = dy.matmul(weight.to(dy.dtype)) if ctx.needs_input_grad[0] else None
        dw = _Pending(ctx.weight, rows, x.reshape(-1, x.shape[-1]))
        db = _Pending(ctx.bias, rows, None) if ctx.needs_input_grad[2] else None
        return dx, *ctx.store.gradients([dw, db]), None
