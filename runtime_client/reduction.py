"""Reduction: averages gradients over the ranks that hold the same stages, while W still runs (paper, Appendix A)."""

from __future__ import annotations

from collections import Counter, defaultdict
from collections.abc import Iterable, Iterator, Sequence

import torch
import torch.distributed as dist
from torch import Tensor, nn

from runtime_client.lowering import Action
from runtime_client.weight_grad_store import Use, add_gradient, run_uses


class Reduction:
    """Averages each parameter's gradient over a group, once per step.

    All ranks of the group must start the same parameters in the same order, so a parameter that got no gradient takes
    part with zeros. A parameter that several stages of this rank share is started last.
    """

    def __init__(self, modules: Sequence[nn.Module], group: dist.ProcessGroup) -> None:
        holders = Counter(parameter for module in modules for parameter in module.parameters())
        self._parameters = [parameter for parameter in holders if parameter.requires_grad]
        self._shared = {parameter for parameter, count in holders.items() if count > 1}
        self._group = group
        self._works: dict[nn.Parameter, dist.Work] = {}

    def start(self, parameters: Iterable[nn.Parameter]) -> None:
        """Start what is neither shared, nor frozen, nor started: these gradients must be final."""
        self._start([parameter for parameter in parameters if parameter not in self._shared])

    def finish(self) -> None:
        """Start the rest and wait until all gradients are averages."""
        self._start(self._parameters)
        for parameter, work in self._works.items():
            work.wait()
            _gradient(parameter).div_(self._group.size())
        self._works.clear()

    def forget(self) -> None:
        """Drop what a step that failed has left."""
        self._works.clear()

    def _start(self, parameters: Iterable[nn.Parameter]) -> None:
        for parameter in parameters:
            if parameter.requires_grad and parameter not in self._works:
                work = dist.all_reduce(_gradient(parameter), group=self._group, async_op=True)
                self._works[parameter] = work


def _gradient(parameter: nn.Parameter) -> Tensor:
    if parameter.grad is None:
        parameter.grad = torch.zeros_like(parameter)
    return parameter.grad


class Tail:
    """Runs the W at the end of a device's order parameter by parameter, and starts each parameter's reduction.

    Behind a device's last F, B and BW only W are left. In their place nothing runs until the last W of a stage; then
    each parameter of the stage adds up all of them, in the plan's order, so that the sums have the same bits.
    """

    def __init__(self, order: Sequence[Action], modules: dict[int, nn.Module], reduction: Reduction) -> None:
        first = max((at + 1 for at, op in enumerate(order) if op.kind != "W"), default=0)
        self._last_of = {op.stage: op for op in order}
        self._in_tail = set(order[first:])
        self._modules = modules
        self._reduction = reduction
        self._waiting: dict[int, list[list[Use]]] = defaultdict(list)

    def run(self, op: Action, uses: list[Use]) -> None:
        """Run a W, or put it off to the last one of its stage."""
        if op not in self._in_tail:
            run_uses(uses)
            return
        self._waiting[op.stage].append(uses)
        if op == self._last_of[op.stage]:
            self._run_by_parameter(self._modules[op.stage], self._waiting.pop(op.stage))

    def ended(self, op: Action) -> None:
        """Start what is left of a stage whose last op is over."""
        if op == self._last_of[op.stage]:
            self._reduction.start(self._modules[op.stage].parameters())

    def forget(self) -> None:
        """Drop what a step that failed has left."""
        self._waiting.clear()

    def _run_by_parameter(self, module: nn.Module, microbatches: list[list[Use]]) -> None:
        gradients = _by_parameter(microbatches)
        self._reduction.start(parameter for parameter in module.parameters() if parameter not in gradients)
        for parameter, sums in gradients.items():
            with torch.no_grad():
                for uses in sums:
                    add_gradient(parameter, _total(uses, parameter))
                    uses.clear()
            self._reduction.start([parameter])


def _by_parameter(microbatches: list[list[Use]]) -> dict[nn.Parameter, list[list[Use]]]:
    """Return per parameter, per microbatch that uses it, its uses; parameters in the order of autograd."""
    grouped: dict[nn.Parameter, list[list[Use]]] = defaultdict(list)
    for uses in microbatches:
        own: dict[nn.Parameter, list[Use]] = defaultdict(list)
        for use in uses:
            for parameter in use.parameters():
                own[parameter].append(use)
        for parameter, its in own.items():
            grouped[parameter].append(its)
        uses.clear()
    return grouped


def _total(uses: Sequence[Use], parameter: nn.Parameter) -> Tensor:
    parts: Iterator[Tensor] = (use.gradient(parameter) for use in uses)
    total = next(parts)
    for part in parts:
        total += part
    return total
