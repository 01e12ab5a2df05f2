"""The weight-gradient store: a Linear computes its input gradient in B and its weight gradient later, in W.

A Linear (``nn.Linear``, or GPT-2's ``Conv1D``) that is attached behaves as before wherever nothing is recorded. While a
store records, its backward returns dX at once and queues dY with x; ``take`` hands the queue over as the function that
is W. This is the ``dw_builder`` contract of ``torch.distributed.pipelining.PipelineStage``.

Everything that is no Linear (norm gains, embeddings) gets its gradient in B, and so does a Linear whose weight is
computed from others, has hooks that are to see its gradient, or belongs to another module too: a head that is tied to
the embedding of its own stage, or ``nn.MultiheadAttention``, which takes its weights without calling a Linear. A weight
that code of the stage takes from a Linear on its own (``functional.linear(x, self.head.weight)``) nobody can see here:
its gradient is right, but the two parts add up in another order than with autograd.

Python runs once per Linear and op here, so this code is written to do little.
"""

from __future__ import annotations

import copy
import types
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from functools import partial
from typing import Any, NamedTuple

import torch
from torch import Tensor, nn
from torch.distributed.tensor import DTensor
from torch.nn import functional


class Use(NamedTuple):
    """A Linear's gradients to come, of one use of it: dY and x as matrices, with a row per token.

    ``bias`` is None where it needs no gradient. The weight of a Linear is [out, in], that of a Conv1D [in, out].
    ``version`` says how often dY and x had been written to when they were queued.
    """

    weight: nn.Parameter
    bias: nn.Parameter | None
    dy: Tensor
    x: Tensor
    out_first: bool
    version: int

    @classmethod
    def of(cls, weight: nn.Parameter, bias: nn.Parameter | None, dy: Tensor, x: Tensor, out_first: bool) -> Use:
        """Return a use of what dY and x hold now."""
        return cls(weight, bias, dy, x, out_first, dy._version + x._version)

    def parameters(self) -> tuple[nn.Parameter, ...]:
        """Return the parameters that take part."""
        return (self.weight,) if self.bias is None else (self.weight, self.bias)

    def gradient(self, parameter: nn.Parameter) -> Tensor:
        """Return dW or db.

        Raises
        ------
        RuntimeError
            If dY or x was written to since: the gradient would be wrong, and autograd looks no more.
        """
        weight, _, dy, x, out_first, version = self
        if dy._version + x._version != version:
            raise RuntimeError(
                f"found the input or the output gradient of a Linear with a weight of shape {tuple(weight.shape)} "
                "changed in place between B and W; needed both as they were: write to a copy"
            )
        if parameter is not weight:
            gradient = dy.sum(0)
        elif out_first:
            gradient = dy.t().mm(x)
        else:
            gradient = x.t().mm(dy)
        return gradient if gradient.dtype is parameter.dtype else gradient.to(parameter.dtype)


class WeightGradStore:
    """Queues the weight gradients of the microbatch whose B runs, and runs them in its W."""

    def __init__(self, *, recording: bool = False) -> None:
        self._queue: list[Use] = []
        self._made_in_b: list[tuple[dict[str, nn.Parameter | None], str]] = []
        self.is_recording = recording

    def attach(self, module: nn.Module) -> None:
        """Route every Linear of a module through this store, in place; parameters and state dict stay as they are."""
        for linear in _linears(module):
            linear.forward = types.MethodType(_forward_through(self, out_first=isinstance(linear, nn.Linear)), linear)
        deferred = set(deferred_parameters(module))
        # Asked of their module in B: FSDP shows other parameters by then.
        self._made_in_b += [
            (owner._parameters, name)
            for owner in module.modules()
            for name, parameter in owner._parameters.items()
            if parameter is not None and parameter not in deferred
        ]

    @contextmanager
    def recording(self, on: bool = True) -> Iterator[None]:
        """Queue weight gradients inside the block; with ``on=False`` compute them at once, as for BW."""
        before, self.is_recording = self.is_recording, on
        try:
            yield
        finally:
            self.is_recording = before

    def put(self, use: Use) -> None:
        """Queue a use for W."""
        self._queue.append(use)

    def take_uses(self) -> list[Use]:
        """Return what was queued since the last call, the last use first, as autograd comes by."""
        uses, self._queue = self._queue, []
        if uses:
            self._keep_apart(uses)
        return uses

    def _keep_apart(self, uses: list[Use]) -> None:
        """Let no parameter's gradient share memory with a dY that waits: the next B would add to both.

        Autograd makes a parameter's first gradient of the very tensor that reached it, or of a view of it. That is the
        dY of a Linear where its output is added to such a view, as of a position embedding with one-row microbatches.
        """
        waiting = {use.dy.untyped_storage().data_ptr() for use in uses}
        for parameters, name in self._made_in_b:
            parameter = parameters.get(name)
            # A DTensor has no memory of its own.
            if parameter is None or parameter.grad is None or isinstance(parameter.grad, DTensor):
                continue
            if parameter.grad.untyped_storage().data_ptr() in waiting:
                parameter.grad = parameter.grad.clone()

    def take(self) -> Callable[[], None]:
        """Return the W of what was queued since the last call: it runs once, and frees each tensor as it goes."""
        return partial(run_uses, self.take_uses())

    def discard(self) -> None:
        """Drop what a backward that failed has left."""
        self._queue.clear()


def run_uses(uses: list[Use]) -> None:
    """Run a W: add to each parameter's gradient the sum over its uses, in the order in which autograd would add them.

    The list is emptied.
    """
    with torch.no_grad():
        if _repeat(uses):
            _run_summed(uses)
        while uses:
            use = uses.pop()
            weight, bias = use.weight, use.bias
            add_gradient(weight, use.gradient(weight))
            if bias is not None:
                add_gradient(bias, use.gradient(bias))


def _repeat(uses: list[Use]) -> bool:
    """Tell whether a parameter is used more than once."""
    weights = {id(use.weight) for use in uses}
    biases = [id(use.bias) for use in uses if use.bias is not None]
    return len(weights) < len(uses) or len(set(biases)) < len(biases)


def _run_summed(uses: list[Use]) -> None:
    totals: dict[nn.Parameter, Tensor] = {}
    for use in uses:
        for parameter in use.parameters():
            gradient = use.gradient(parameter)
            if parameter in totals:
                totals[parameter] += gradient
            else:
                totals[parameter] = gradient
    uses.clear()
    for parameter, total in totals.items():
        add_gradient(parameter, total)


def add_gradient(parameter: nn.Parameter, gradient: Tensor) -> None:
    """Accumulate a gradient that nobody else holds."""
    before = parameter.grad
    if before is None:
        parameter.grad = gradient
    else:
        before.add_(gradient)


def split(module: nn.Module) -> Callable[[], Callable[[], None]]:
    """Split the backward of a module, in place, for good, and return its ``dw_builder``.

    For a stage that stands alone, as the profiler measures it: ``splitter=runtime_client.split``.
    """
    store = WeightGradStore(recording=True)
    store.attach(module)
    # W is asked for right behind its B. What a backward has left by the next forward nobody will ask for: torch's
    # schedules run one on made-up tensors before the first step.
    module.register_forward_pre_hook(lambda *_: store.discard())
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


def _linears(module: nn.Module) -> list[Any]:
    """Return the Linears whose forward no subclass has changed, and the Conv1Ds, if nothing else uses their parameters.

    What else does adds its part in B, and a sum of both would depend on where W stands.
    """
    uncalled = {inner.out_proj for inner in module.modules() if isinstance(inner, nn.MultiheadAttention)}
    linears = [
        inner
        for inner in module.modules()
        if inner not in uncalled and ((isinstance(inner, nn.Linear) and _is_unchanged(inner)) or _is_conv1d(inner))
    ]
    others = set(module.modules()).difference(linears)
    elsewhere = {id(parameter) for other in others for parameter in other._parameters.values() if parameter is not None}
    return [linear for linear in linears if elsewhere.isdisjoint(map(id, linear._parameters.values()))]


def _is_unchanged(linear: nn.Linear) -> bool:
    return type(linear).forward is nn.Linear.forward


def _is_conv1d(module: Any) -> bool:
    """Tell whether a module is GPT-2's ``Conv1D``, which every implementation has under this name: it must act so."""
    weight, bias = getattr(module, "weight", None), getattr(module, "bias", None)
    if type(module).__name__ != "Conv1D" or not (isinstance(weight, Tensor) and isinstance(bias, Tensor)):
        return False
    if weight.dim() != 2 or bias.shape != weight.shape[1:]:
        return False
    # On made-up weights: its own may be all zeros, or in shards on other ranks.
    wide, high = weight.shape
    x, weight, bias = (torch.linspace(-1, 1, size) for size in (wide, wide * high, high))
    x, weight = x.expand(1, 1, -1), weight.view(wide, high)
    twin = copy.copy(module)
    twin._parameters = {"weight": weight, "bias": bias}
    with torch.no_grad():
        y = type(module).forward(twin, x)
    return y.shape == (1, 1, high) and torch.allclose(y[0], torch.addmm(bias, x[0], weight))


def _can_wait(weight: Tensor, bias: Tensor | None) -> bool:
    """Tell whether a Linear's gradients can wait.

    Not where its weight is frozen or computed by a parametrization, and not where hooks are to see a gradient: they
    would see none in B, and W is no part of the graph.
    """
    return weight.requires_grad and _is_plain(weight) and (bias is None or _is_plain(bias))


def _is_plain(parameter: Any) -> bool:
    return parameter.is_leaf and not parameter._backward_hooks and not parameter._post_accumulate_grad_hooks


def _forward_through(store: WeightGradStore, *, out_first: bool) -> Callable[[nn.Module, Tensor], Tensor]:
    plainly = functional.linear if out_first else _conv1d

    def forward(linear: Any, x: Tensor) -> Tensor:
        weight, bias = linear.weight, linear.bias
        # torch.func sees through no Function of this kind, so what it transforms (vmap, grad) does not wait.
        transformed = torch._C._are_functorch_transforms_active()
        if transformed or not (torch.is_grad_enabled() and _can_wait(weight, bias)):
            return plainly(x, weight, bias)
        # Autocast leaves float64 alone.
        if torch.is_autocast_enabled(x.device.type) and x.dtype is not torch.float64:
            x = x.to(torch.get_autocast_dtype(x.device.type))
        return _DeferredLinear.apply(x, weight, bias, store, out_first)

    return forward


def _conv1d(x: Tensor, weight: Tensor, bias: Tensor) -> Tensor:
    return torch.addmm(bias, x.reshape(-1, x.shape[-1]), weight).view(*x.shape[:-1], weight.shape[1])


class _DeferredLinear(torch.autograd.Function):
    """A Linear whose weight gradient goes through a store; bit for bit what autograd computes.

    Only what autocast casts once for several uses (a weight, a stage's input) autograd adds up in low precision, and
    this in the tensor's own.
    """

    @staticmethod
    def forward(
        ctx: Any, x: Tensor, weight: nn.Parameter, bias: nn.Parameter | None, store: WeightGradStore, out_first: bool
    ) -> Tensor:
        ctx.save_for_backward(x, weight)
        # What is saved may come back as another tensor (checkpointing); the gradient belongs to these very objects.
        ctx.weight, ctx.bias, ctx.store, ctx.out_first = weight, bias, store, out_first
        y = functional.linear(x, weight, bias) if out_first else _conv1d(x, weight, bias)
        # Autograd lets nobody write in place (ReLU) to what a Function returns if it knows it as a view.
        written: Tensor = torch.ops.aten._unsafe_view(y, y.shape) if y._is_view() else y
        return written

    @staticmethod
    def backward(ctx: Any, dy: Tensor) -> tuple[Tensor | None, ...]:
        x, weight = ctx.saved_tensors
        x = x.detach()  # else the queue holds the graph, and that the stage's input, until W
        needs_dx, _, needs_db, _, _ = ctx.needs_input_grad
        dx = None
        if needs_dx:
            factor = weight if ctx.out_first else weight.t()
            dx = dy.matmul(factor if factor.dtype is dy.dtype else factor.to(dy.dtype))
        if dy.dim() != 2:
            dy, x = dy.reshape(-1, dy.shape[-1]), x.reshape(-1, x.shape[-1])
        use = Use.of(ctx.weight, ctx.bias if needs_db else None, dy, x, ctx.out_first)
        if not ctx.store.is_recording:
            return dx, use.gradient(use.weight), use.gradient(use.bias) if needs_db else None, None, None
        if torch.is_grad_enabled():
            raise RuntimeError("found a backward through a backward; needed one without create_graph: W has no graph")
        ctx.store.put(use)
        return dx, None, None, None, None


STORE_NODE = _DeferredLinear._backward_cls
"""The class of this module's nodes in a graph."""
