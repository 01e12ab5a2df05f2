"""Steps: how many times an op is run, and which of them count."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from profiler.errors import MeasurementError
from zbplan.duration import FEWEST, Duration


@dataclass(frozen=True)
class Steps:
    """How many times an op is run.

    Attributes
    ----------
    warmup
        First runs, whose times are dropped: they allocate, load and compile.
    steady
        Runs after them, whose median counts.
    """

    warmup: int
    steady: int

    def __post_init__(self) -> None:
        if self.warmup < 1:
            raise MeasurementError(f"found {self.warmup} warm-up steps; needed 1 or more: a first step is never steady")
        if self.steady < 1:
            raise MeasurementError(f"found {self.steady} steady samples; needed {FEWEST} or more")

    def __len__(self) -> int:
        return self.warmup + self.steady

    def times(self, factor: int) -> Steps:
        """Return more runs, for an op too short to be told from a hiccup of the machine in a few."""
        return Steps(factor * self.warmup, factor * self.steady)

    def duration(self, samples_ms: Sequence[float]) -> Duration:
        """Return the median and spread of the steady ones among the samples of all runs."""
        return Duration.of(samples_ms[self.warmup :])
