"""Claim: one figure that a benchmark measured, beside what was promised."""

from __future__ import annotations

import math
from collections.abc import Iterable
from dataclasses import dataclass


@dataclass(frozen=True)
class Claim:
    """One number, and between which it must lie."""

    text: str
    found: float
    most: float
    least: float = -math.inf

    def __str__(self) -> str:
        verdict = "ok  " if self.holds else "FAIL"
        least = f"{self.least:.4f} to " if self.least > -math.inf else "at most "
        return f"{verdict} {self.text}: {self.found:.4f} (must be {least}{self.most:.4f})"

    @property
    def holds(self) -> bool:
        """Whether the number is what was promised."""
        return self.least <= self.found <= self.most


def exit_status(claims: Iterable[Claim]) -> int:
    """Print claims as they come; return 1 if one does not hold."""
    held = True
    for claim in claims:
        print(claim, flush=True)
        held = held and claim.holds
    return int(not held)
