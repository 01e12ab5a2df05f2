"""Preflight: what about a stage would train wrongly, or not as planned, found before the first step.

What would train wrongly is refused. A stage whose backward cannot be split runs it whole where the plan has B, and
nothing where it has W: right, but slower than planned, so a warning says so.
"""

from __future__ import annotations

import warnings
from collections.abc import Container, Iterator, Sequence
from typing import Any

import torch
from torch import Tensor, nn
from torch.distributed.fsdp import FullyShardedDataParallel
from torch.distributed.pipelining import PipelineStage
from torch.nn.parallel import DistributedDataParallel
from torch.utils._pytree import tree_leaves
from torch.utils.checkpoint import CheckpointFunction

from runtime_client.errors import JobMismatchError
from runtime_client.weight_grad_store import STORE_NODE

NAMED = 3
"""How many parameters a sentence names."""

_REENTRANT = CheckpointFunction._backward_cls

_INSTEAD = "needed the bare module, with FSDP2 (fully_shard) or PlanSchedule(data_parallel_group=…)"
_WRAPPERS = {
    DistributedDataParallel: "averages gradients before W has run",
    FullyShardedDataParallel: "scatters gradients before W has run",
}


class UnsplitStageWarning(UserWarning):
    """A stage runs its whole backward in B, and nothing in W."""


class UntrainedStageWarning(UserWarning):
    """A stage has parameters to train, and none of them gets a gradient."""


class WeightsInBWarning(UserWarning):
    """Weights of a stage get their gradient in B, though a plan with W expects it in W."""


def refusals(stages: Sequence[PipelineStage]) -> Iterator[str]:
    """Yield a sentence for each module that would make gradients wrong."""
    for stage in stages:
        for name, module in stage.submod.named_modules():
            for wrapper, why in _WRAPPERS.items():
                if isinstance(module, wrapper):
                    where = f"stage {stage.stage_index}" + (f", module {name!r}," if name else "")
                    yield f"{where} is wrapped in {wrapper.__name__}, which {why}; {_INSTEAD}"


def obstacle(module: nn.Module) -> str | None:
    """Return why the backward of a module cannot be split; None if it can.

    torch.compile makes one function of forward and one of backward, from which no weight gradient can be left out. Both
    its forms are found: the wrapper that ``torch.compile(module)`` returns, and ``module.compile()``.
    """
    for name, inner in module.named_modules():
        called = f"module {name!r}" if name else "it"
        if isinstance(inner, torch._dynamo.OptimizedModule):
            return f"{called} is wrapped by torch.compile"
        if inner._compiled_call_impl is not None:
            return f"{called} is compiled in place by module.compile()"
    return None


def warn_unsplit(stage: int, why: str) -> None:
    """Say that a stage runs unsplit, and what to do."""
    warnings.warn(
        f"stage {stage}: {why}, so that its backward cannot be split: B runs all of it and W nothing; to get what the "
        f"plan predicts, set splittable to false for stage {stage} in the profile and plan again, or do not compile it",
        UnsplitStageWarning,
        stacklevel=4,
    )


def inspect_first_graph(stage: int, module: nn.Module, *, split: bool) -> None:
    """Look at the graph of the module's first forward, before its first backward.

    Warns of weights that no gradient can reach, and, where the backward is split, of weights that W misses.

    Raises
    ------
    JobMismatchError
        From that forward, where it is checkpointed in the way that only runs in a backward of everything.
    """

    def hook(module: nn.Module, args: Any, output: Any) -> None:
        if not torch.is_grad_enabled():
            return
        handle.remove()
        roots = [leaf.grad_fn for leaf in tree_leaves(output) if isinstance(leaf, Tensor) and leaf.grad_fn is not None]
        if not roots:
            _warn_untrained(stage, module)
        _refuse_reentrant(stage, roots)
        if split:
            _warn_weights_in_b(stage, module, roots, inputs={id(leaf) for leaf in tree_leaves(args)})

    handle = module.register_forward_hook(hook)


def _refuse_reentrant(stage: int, roots: Sequence[Any]) -> None:
    if any(isinstance(node, _REENTRANT) for node in _nodes(roots)):
        raise JobMismatchError(
            [
                f"stage {stage} is checkpointed with use_reentrant=True, which only runs in a backward of all "
                "parameters at once; needed use_reentrant=False (for transformers: "
                "gradient_checkpointing_kwargs={'use_reentrant': False})"
            ]
        )


def _warn_untrained(stage: int, module: nn.Module) -> None:
    trainable = sum(parameter.requires_grad for parameter in module.parameters())
    if trainable:
        warnings.warn(
            f"stage {stage}: found an output that no gradient leads back from, so that its {trainable} trainable "
            "parameters get none; needed a graph: with activation checkpointing, use_reentrant=False (True trains "
            "nothing where no input needs a gradient, such as token ids); if it is to be frozen, requires_grad_(False)",
            UntrainedStageWarning,
            stacklevel=2,
        )


def _warn_weights_in_b(stage: int, module: nn.Module, roots: Sequence[Any], inputs: Container[int]) -> None:
    name_of = {id(parameter): name for name, parameter in module.named_parameters()}
    owned = [
        f"{name_of.get(id(parameter), 'a parameter')} ({function})"
        for function, parameter in _custom_weights(roots)
        if id(parameter) not in inputs
    ]
    owned += _attention_weights(module)
    if owned:
        more = f" and {len(owned) - NAMED} more" if len(owned) > NAMED else ""
        warnings.warn(
            f"stage {stage}: the gradients of {', '.join(owned[:NAMED])}{more} are made in B, by what is no nn.Linear: "
            "they are right, but W has that much less to do; use nn.Linear, or take a profile measured with --splitter "
            "runtime_client:split, which times B and W as they run here",
            WeightsInBWarning,
            stacklevel=2,
        )


def _attention_weights(module: nn.Module) -> list[str]:
    """Return the matrices of torch's own attention, which does not call the Linear that it has."""
    return [
        f"{prefix}.{name}".removeprefix(".") + f" ({type(inner).__name__})"
        for prefix, inner in module.named_modules()
        if isinstance(inner, nn.MultiheadAttention)
        for name, parameter in inner.named_parameters()
        if parameter.requires_grad and parameter.dim() > 1
    ]


def _custom_weights(roots: Sequence[Any]) -> Iterator[tuple[str, Tensor]]:
    """Yield each matrix that is a direct input of a custom autograd.Function, with the function's name."""
    for node in _nodes(roots):
        if isinstance(node, torch.autograd.function.BackwardCFunction) and not isinstance(node, STORE_NODE):
            for following, _ in node.next_functions:
                parameter = getattr(following, "variable", None)
                if parameter is not None and parameter.dim() > 1:
                    yield type(node).__name__.removesuffix("Backward"), parameter


def _nodes(roots: Sequence[Any]) -> Iterator[Any]:
    """Yield every node of a graph once."""
    seen = set(roots)
    nodes = list(roots)
    while nodes:
        node = nodes.pop()
        yield node
        for following, _ in node.next_functions:
            if following is not None and following not in seen:
                seen.add(following)
                nodes.append(following)
