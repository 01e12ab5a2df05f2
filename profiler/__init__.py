"""The agent that measures a model on the nodes that will train it.

What needs torch is imported when it is first used: an estimate from formulas needs none.
"""

from importlib import import_module
from typing import TYPE_CHECKING, Any

from profiler.errors import MeasurementError, PostError
from profiler.formulas import estimate

if TYPE_CHECKING:
    from profiler.agent import Options, measure, measure_layers
    from profiler.model import LayeredModel, Splitter, StagedModel
    from profiler.recorder import Recorder

__all__ = [
    "LayeredModel",
    "MeasurementError",
    "Options",
    "PostError",
    "Recorder",
    "Splitter",
    "StagedModel",
    "estimate",
    "measure",
    "measure_layers",
]

_HOMES = {
    "LayeredModel": "profiler.model",
    "Options": "profiler.agent",
    "Recorder": "profiler.recorder",
    "Splitter": "profiler.model",
    "StagedModel": "profiler.model",
    "measure": "profiler.agent",
    "measure_layers": "profiler.agent",
}


def __getattr__(name: str) -> Any:
    if name not in _HOMES:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    return getattr(import_module(_HOMES[name]), name)
