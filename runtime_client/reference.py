"""Reference: a plan's step in one process with plain autograd, to the last bit what the pipeline must compute.

Floating-point sums depend on their order, so a parameter's gradient must add up its microbatches as the plan does:
what the weight-gradient store leaves for W in the order of W (or BW), every other parameter in that of B (or BW).
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import torch
from torch import Tensor, nn

from runtime_client.lowering import Action, execution_order
from runtime_client.weight_grad_store import deferred_parameters
from zbplan.plan import Plan

Gradients = list[tuple[nn.Parameter, Tensor]]


def reference_step(
    stages: Sequence[nn.Module],
    plan: Plan,
    loss_fn: Callable[..., Tensor],
    *args: Any,
    target: Any,
    scale_grads: bool = True,
) -> list[Tensor]:
    """Run one step of all stages in this process, in the plan's order; return the losses by microbatch.

    Gradients are added to the parameters' ``grad``, as ``PlanSchedule.step`` does on the ranks. Equal bits take the
    same number of threads as a rank has, and stages without random numbers (dropout draws in another order).

    Parameters
    ----------
    stages
        Stage 0 … S−1, as they would be handed to ``PipelineStage``, not to a ``PlanSchedule``.
    loss_fn, args, target, scale_grads
        As for ``PlanSchedule``.
    """
    microbatches = plan.requires.microbatches
    inputs = zip(*(torch.tensor_split(value, microbatches) for value in args), strict=True)
    run = _Run(stages, list(inputs), loss_fn, torch.tensor_split(target, microbatches), scale_grads)
    for action in execution_order(plan):
        run.perform(action)
    return [run.losses[microbatch] for microbatch in range(microbatches)]


class _Run:
    """The tensors of one step that are under way between its ops."""

    def __init__(
        self,
        stages: Sequence[nn.Module],
        inputs: list[tuple[Tensor, ...]],
        loss_fn: Callable[..., Tensor],
        targets: Sequence[Tensor],
        scale_grads: bool,
    ) -> None:
        self.losses: dict[int, Tensor] = {}
        self._stages = stages
        self._loss_fn = loss_fn
        self._targets = targets
        self._divisor = len(inputs) if scale_grads else 1
        self._deferred = [set(map(id, deferred_parameters(stage))) for stage in stages]
        self._arrived = {(0, microbatch): tensors for microbatch, tensors in enumerate(inputs)}
        self._results: dict[tuple[int, int], tuple[Any, ...]] = {}
        self._gradients: dict[tuple[int, int], tuple[Tensor | None, ...]] = {}
        self._waiting: dict[tuple[int, int], Gradients] = {}

    def perform(self, action: Action) -> None:
        """Run one op."""
        kind, stage, microbatch = action
        if kind == "F":
            self._forward(stage, microbatch)
        elif kind == "W":
            _add(self._waiting.pop((stage, microbatch)))
        else:
            self._backward(stage, microbatch, split=kind == "B")

    def _forward(self, stage: int, microbatch: int) -> None:
        output = self._stages[stage](*self._arrived[stage, microbatch])
        if stage + 1 == len(self._stages):
            loss = self._loss_fn(output, self._targets[microbatch])
            self.losses[microbatch] = loss.detach()
            self._results[stage, microbatch] = (loss / self._divisor,)
            self._gradients[stage, microbatch] = (None,)
            return
        outputs = tuple(output) if isinstance(output, tuple | list) else (output,)
        self._results[stage, microbatch] = outputs
        self._arrived[stage + 1, microbatch] = tuple(
            result.detach().requires_grad_(result.requires_grad) for result in outputs
        )

    def _backward(self, stage: int, microbatch: int, *, split: bool) -> None:
        given = zip(self._results.pop((stage, microbatch)), self._gradients.pop((stage, microbatch)), strict=True)
        arrived = self._arrived.pop((stage, microbatch))
        parameters = [parameter for parameter in self._stages[stage].parameters() if parameter.requires_grad]
        input_gradients, gradients = _differentiate(list(given), arrived, parameters)
        if stage > 0:
            self._gradients[stage - 1, microbatch] = input_gradients
        deferred = self._deferred[stage] if split else set()
        _add([pair for pair in gradients if id(pair[0]) not in deferred])
        if split:
            self._waiting[stage, microbatch] = [pair for pair in gradients if id(pair[0]) in deferred]


def _differentiate(
    given: list[tuple[Any, Tensor | None]], arrived: tuple[Tensor, ...], parameters: list[nn.Parameter]
) -> tuple[tuple[Tensor | None, ...], Gradients]:
    """Return the gradient of each input that has one, and of each parameter that has one."""
    roots = [(result, gradient) for result, gradient in given if result.requires_grad]
    leaves = [tensor for tensor in arrived if tensor.requires_grad]
    if not roots or not leaves + parameters:
        return tuple(None for _ in arrived), []
    results, output_gradients = zip(*roots, strict=True)
    gradients = torch.autograd.grad(results, [*leaves, *parameters], output_gradients, allow_unused=True)
    of_leaf = iter(gradients)
    input_gradients = tuple(next(of_leaf) if tensor.requires_grad else None for tensor in arrived)
    found = zip(parameters, of_leaf, strict=True)
    return input_gradients, [(parameter, gradient) for parameter, gradient in found if gradient is not None]


def _add(gradients: Gradients) -> None:
    for parameter, gradient in gradients:
        # Autograd may return one tensor for two parameters, so none is kept or added to in place.
        parameter.grad = gradient.clone() if parameter.grad is None else parameter.grad + gradient
