"""The agent that measures a model on the nodes that will train it."""

from profiler.agent import measure
from profiler.errors import MeasurementError
from profiler.model import Splitter, StagedModel

__all__ = ["MeasurementError", "Splitter", "StagedModel", "measure"]
