"""What a user hands to the profiler: a model cut in stages, and how its backward is split."""

from __future__ import annotations

import importlib
import sys
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field, fields
from itertools import pairwise
from pathlib import Path
from typing import Any, TypeVar, cast

from pydantic import JsonValue
from torch import Tensor, nn, optim

from profiler.errors import MeasurementError

Splitter = Callable[[nn.Module], Callable[[], Callable[..., None]]]
"""Prepares a stage, in place, so that its backward leaves weight gradients out, and returns the stage's ``dw_builder``.

``dw_builder`` is what ``torch.distributed.pipelining.PipelineStage`` takes under that name: called at the end of a
microbatch's B, it returns the function that runs this microbatch's W.
"""

OptimizerFactory = Callable[[list[nn.Parameter]], optim.Optimizer]


Part = nn.Module | Callable[[], nn.Module]
"""A stage or layer: the module, or a function that builds it, so that a process builds only what it measures."""


@dataclass(frozen=True, kw_only=True)
class _Model:
    """What a model needs beside its modules.

    Attributes
    ----------
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

    microbatch: tuple[Tensor, ...]
    target: Any
    loss: Callable[[Any, Any], Tensor]
    optimizer: OptimizerFactory = optim.AdamW
    name: str = ""
    environment: Mapping[str, JsonValue] = field(default_factory=dict)


@dataclass(frozen=True, kw_only=True)
class StagedModel(_Model):
    """A model cut in stages, with one example microbatch.

    Attributes
    ----------
    stages
        Stage 0 … S−1 in forward order. A stage takes the tensors that the stage before it returns, one or a tuple.
    """

    stages: Sequence[Part]

    def build(self, stage: int) -> nn.Module:
        """Return the module of a stage."""
        entry = self.stages[stage]
        return entry if isinstance(entry, nn.Module) else entry()


@dataclass(frozen=True, kw_only=True)
class LayeredModel(_Model):
    """A model as a list of layers, still to be cut in stages, with one example microbatch.

    Attributes
    ----------
    layers
        In forward order. A layer takes the tensors that the layer before it returns, one or a tuple.
    """

    layers: Sequence[Part]

    def one_layer_each(self) -> StagedModel:
        """Return the model with each layer a stage."""
        return self._staged(self.layers)

    def cut(self, starts: Sequence[int]) -> StagedModel:
        """Return the model cut in stages, given the first layer of each."""
        bounds = [*starts, len(self.layers)]
        return self._staged([_Chain(self.layers[first:last]) for first, last in pairwise(bounds)])

    def _staged(self, stages: Sequence[Part]) -> StagedModel:
        shared = {field.name: getattr(self, field.name) for field in fields(_Model)}
        return StagedModel(stages=stages, **shared)


class _Chain:
    """Builds layers and runs one behind the other, with whatever each returns."""

    def __init__(self, layers: Sequence[Part]) -> None:
        self._layers = layers

    def __call__(self) -> nn.Module:
        return _Sequence(*(layer if isinstance(layer, nn.Module) else layer() for layer in self._layers))


class _Sequence(nn.Sequential):
    def forward(self, *inputs: Any) -> Any:
        for layer in self:
            outputs = layer(*inputs)
            inputs = outputs if isinstance(outputs, tuple) else (outputs,)
        return outputs


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
    return cast(Callable[..., Any], function)


def load_model(entry: str, stages: int) -> StagedModel:
    """Call the factory ``module:function`` with the number of stages.

    Raises
    ------
    MeasurementError
        For fewer stages than one, or when the factory fails or returns anything but a ``StagedModel`` of as many.
    """
    if stages < 1:
        raise MeasurementError(f"found {stages} stages; needed 1 or more")
    model = _called(entry, StagedModel, stages)
    if len(model.stages) != stages:
        raise MeasurementError(f"{entry}({stages}): found {len(model.stages)} stages; needed {stages}")
    return model


def load_layers(entry: str) -> LayeredModel:
    """Call the factory ``module:function`` without arguments.

    Raises
    ------
    MeasurementError
        When the factory fails or returns anything but a ``LayeredModel`` of one layer or more.
    """
    model = _called(entry, LayeredModel)
    if not model.layers:
        raise MeasurementError(f"{entry}(): found no layers; needed 1 or more")
    return model


Model = TypeVar("Model", StagedModel, LayeredModel)


def _called(entry: str, kind: type[Model], *arguments: int) -> Model:
    call = f"{entry}({', '.join(map(str, arguments))})"
    try:
        model = load_function(entry)(*arguments)
    except MeasurementError:
        raise
    except Exception as error:
        raise MeasurementError(f"{call}: found {type(error).__name__}: {error}; needed a model") from error
    if not isinstance(model, kind):
        raise MeasurementError(f"{call}: found a {type(model).__name__}; needed a profiler.{kind.__name__}")
    return model
