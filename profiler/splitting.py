"""Whether a stage's backward can be split: what cannot is refused by name before it is measured."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import nullcontext
from typing import Any

import torch
from torch import Tensor
from torch.nn.parallel import DistributedDataParallel

from profiler.backward import native, stored
from profiler.errors import MeasurementError
from profiler.microbatch import Stage, named, run_microbatch
from profiler.model import Splitter
from profiler.sandbox import untouched
from zbplan.profile import EngineMode

ADVICE = "or measure that stage with --unsplit {stage} (BW only), or all with --engine-mode fused"

Gradients = dict[str, Tensor | None]


def split_backward(stage: Stage, engine_mode: EngineMode, splitter: Splitter | None) -> None:
    """Prepare a stage so that its backward runs as in an engine mode; one without trainable parameters stays whole.

    Raises
    ------
    MeasurementError
        When it cannot be split, or when B and W together give other gradients than BW: naming module or parameter.
    """
    if engine_mode == "fused" or not any(parameter.requires_grad for parameter in stage.module.parameters()):
        return
    _refuse_modules(stage)
    expected = _gradients(stage)
    with named(stage.index, "splitting the backward"):
        if engine_mode == "native_split":
            first = stage.index == 0
            if not first:
                _refuse_functions(stage)
            stage.backward = native(stage.module, first=first)
        elif splitter is not None:
            stage.backward = stored(splitter(stage.module))
    _compare(stage, expected, _gradients(stage))


def _refuse_modules(stage: Stage) -> None:
    for name, module in stage.module.named_modules():
        found, needed = None, ""
        if isinstance(module, DistributedDataParallel):
            found = "DistributedDataParallel, which averages gradients before W has run"
            needed = "the bare module (FSDP2, or an all-reduce after the step)"
        elif "_orig_mod" in module._modules or module._compiled_call_impl is not None:
            found, needed = "torch.compile, whose backward cannot be taken apart", "the module as it was"
        if found is not None:
            advice = ADVICE.format(stage=stage.index)
            where = f"stage {stage.index}, module {name or '(the stage itself)'} ({type(module).__name__})"
            raise MeasurementError(f"{where}: found {found}; needed {needed} to split its backward, {advice}")


def _refuse_functions(stage: Stage) -> None:
    """Refuse custom functions that make a weight's gradient: torch's own split runs their backward in B and in W."""
    names = {id(parameter): name for name, parameter in stage.module.named_parameters()}
    with untouched(stage.module):
        outputs = stage.forward(stage.arrival())
    for node in _graph(outputs):
        parameters = [names[id(leaf)] for leaf in _leaves(node) if id(leaf) in names]
        custom = isinstance(node, torch.autograd.function.BackwardCFunction)
        reentrant = node.name() == "CheckpointFunctionBackward"
        if custom and (parameters or reentrant):
            where = "activation checkpointing with use_reentrant=True" if reentrant else f"parameter {parameters[0]!r}"
            raise MeasurementError(
                f"found {node.name()}, an autograd.Function, at {where}, whose backward torch's native split would run "
                f"in full in B and again in W; needed torch's own ops there (use_reentrant=False), "
                f"--engine-mode weight_grad_store, {ADVICE.format(stage=stage.index)}"
            )


def _graph(outputs: tuple[Tensor, ...]) -> Iterator[Any]:
    seen, queue = set(), [output.grad_fn for output in outputs if output.grad_fn is not None]
    while queue:
        node = queue.pop()
        if node not in seen:
            seen.add(node)
            yield node
            queue += [parent for parent, _ in node.next_functions if parent is not None]


def _leaves(node: Any) -> Iterator[Tensor]:
    for parent, _ in node.next_functions:
        variable = getattr(parent, "variable", None)
        if variable is not None:
            yield variable


def _gradients(stage: Stage) -> Gradients:
    """Return each parameter's gradient of one microbatch."""
    with untouched(stage.module):
        run_microbatch(stage, lambda _: nullcontext())
        return {name: parameter.grad for name, parameter in stage.module.named_parameters()}


def _compare(stage: Stage, expected: Gradients, found: Gradients) -> None:
    for name, right in expected.items():
        error = _relative_error(right, found[name])
        if error > 0:
            module = stage.module.get_submodule(name.rpartition(".")[0])
            wrong = "no gradient" if found[name] is None else f"a gradient that is {error:.0%} off"
            raise MeasurementError(
                f"stage {stage.index}, parameter {name!r} of {type(module).__name__}: found {wrong} after B and W; "
                f"needed that of BW: use another --engine-mode, {ADVICE.format(stage=stage.index)}"
            )


def _relative_error(right: Tensor | None, found: Tensor | None) -> float:
    """Return how far a gradient is off, in parts of it; 0 where rounding may explain it."""
    if right is None or found is None:
        there = right if right is not None else found
        return 0.0 if there is None or not there.any() else 1.0
    off = torch.linalg.vector_norm((found - right).float())
    size = torch.linalg.vector_norm(right.float())
    if not off > torch.finfo(right.dtype).eps ** 0.5 * size:
        return 0.0
    return float(off / size) if size > 0 else 1.0
