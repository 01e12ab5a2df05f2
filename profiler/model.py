"""What a user hands to the profiler: a model cut in stages, and how its backward is split."""

from __future__ import annotations

import importlib
import sys
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from pydantic import JsonValue
from torch import Tensor, nn, optim

from profiler.errors import MeasurementError

Splitter = Callable[[nn.Module], Callable[[], Callable[..., None]]]
"""Prepares a stage, in place, so that its backward leaves weight gradients out, and returns the stage's ``dw_builder``.

``dw_builder`` is what ``torch.distributed.pipelining.PipelineStage`` takes under that name: called at the end of a
microbatch's B, it returns the function that runs this microbatch's W.
"""

OptimizerFactory = Callable[[list[nn.Parameter]], optim.Optimizer]


@dataclass(frozen=True, kw_only=True)
class StagedModel:
    """A model cut in stages, with one example microbatch.

    Attributes
    ----------
    stages
        Stage 0 … S−1 in forward order: a module, or a function that builds it, so that a process builds only the
        stages that it measures. A stage takes the tensors that the stage before it returns, a tensor or a tuple.
    microbatch
        Input tensors of stage 0.
    target
        What ``loss`` compares the last stage's output with.
    loss
        ``loss(output, target)`` returns a scalar; it runs inside the last stage's F.
    optimizer
        Makes the optimizer for a list of parameters; its state counts as static memory.
    name
        Name of the profile.
    environment
        What to keep about the model in the profile, such as ``microbatch_size`` and ``sequence_length``.
    """

    stages: Sequence[nn.Module | Callable[[], nn.Module]]
    microbatch: tuple[Tensor, ...]
    target: Any
    loss: Callable[[Any, Any], Tensor]
    optimizer: OptimizerFactory = optim.AdamW
    name: str = ""
    environment: Mapping[str, JsonValue] = field(default_factory=dict)

    def build(self, stage: int) -> nn.Module:
        """Return the module of a stage."""
        entry = self.stages[stage]
        return entry if isinstance(entry, nn.Module) else entry()


def load_function(entry: str) -> Callable[..., Any]:
    """Return what ``module:function`` names, with the working directory on the import path.

    Raises
    ------
    MeasurementError
        When there is no such module or function, or the module does not import.
    """
    module_name, _, function_name = entry.partition(":")
    if not module_name or not function_name:
        raise MeasurementError(f"found {entry!r}; needed module:function, such as examples.gpt:staged_model")
    if str(Path.cwd()) not in sys.path:
        sys.path.insert(0, str(Path.cwd()))
    try:
        function: Any = getattr(importlib.import_module(module_name), function_name)
    except Exception as error:
        found = f"{type(error).__name__}: {error}"
        raise MeasurementError(f"{entry}: found {found}; needed a function to import") from error
    if not callable(function):
        raise MeasurementError(f"{entry}: found a {type(function).__name__}; needed a function")
    return function


def load_model(entry: str, stages: int) -> StagedModel:
    """Call the factory ``module:function`` with the number of stages.

    Raises
    ------
    MeasurementError
        For fewer stages than one, or when the factory fails or returns anything but a ``StagedModel`` of as many.
    """
    if stages < 1:
        raise MeasurementError(f"found {stages} stages; needed 1 or more")
    try:
        model = load_function(entry)(stages)
    except MeasurementError:
        raise
    except Exception as error:
        raise MeasurementError(f"{entry}({stages}): found {type(error).__name__}: {error}; needed a model") from error
    if not isinstance(model, StagedModel):
        raise MeasurementError(f"{entry}({stages}): found a {type(model).__name__}; needed a profiler.StagedModel")
    if len(model.stages) != stages:
        raise MeasurementError(f"{entry}({stages}): found {len(model.stages)} stages; needed {stages}")
    return model
