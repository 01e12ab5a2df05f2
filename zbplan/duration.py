"""Duration: how long an op takes, as the median of samples, with their spread and number, and when to doubt it."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from statistics import median
from typing import NamedTuple

FEWEST = 3
"""Steady samples below which a median says nothing."""

WIDEST = 0.10
"""Spread, in parts of the median, above which a median is not to be trusted."""

MATTERS = 0.01
"""A spread below this part of a stage's F, B and W together is no matter, however short the op itself."""

DIGITS = 6
"""Decimals of a millisecond that a profile keeps."""


class Doubt(NamedTuple):
    """Why a median is not to be trusted: what was found, and what was needed."""

    found: str
    needed: str

    def __str__(self) -> str:
        return f"found {self.found}; needed {self.needed}"


@dataclass(frozen=True)
class Duration:
    """How long an op takes.

    Attributes
    ----------
    median_ms
        Median of the steady samples.
    spread_ms
        Their median absolute deviation.
    samples
        Their number; 0 for an op that does not exist.
    """

    median_ms: float
    spread_ms: float
    samples: int

    @classmethod
    def of(cls, samples_ms: Sequence[float]) -> Duration:
        """Return the median of samples."""
        middle = median(samples_ms)
        return cls(middle, median(abs(sample - middle) for sample in samples_ms), len(samples_ms))

    def doubt(self, microbatch_ms: float) -> Doubt | None:
        """Return what makes this median unsure, next to a stage's F, B and W of a microbatch; None for nothing."""
        if 0 < self.samples < FEWEST:
            return Doubt(f"{self.samples} steady samples", f"{FEWEST} or more")
        if self.spread_ms > max(WIDEST * self.median_ms, MATTERS * microbatch_ms):
            found = f"{self.spread_ms:.3g} ms around {self.median_ms:.4g} ms ({self.spread_ms / self.median_ms:.0%})"
            return Doubt(f"a spread of {found} over {self.samples} samples", f"{WIDEST:.0%} or less")
        return None


NEVER = Duration(0.0, 0.0, 0)
"""The duration of an op that a stage does not have."""
