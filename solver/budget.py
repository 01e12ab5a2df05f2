"""Budget: what a solve may use up."""

from __future__ import annotations

import time
from dataclasses import dataclass

from zbplan.stop import Stop, never


@dataclass(frozen=True)
class Budget:
    """Time, threads, and the patience of whoever asked.

    Attributes
    ----------
    began_s
        Monotonic seconds at which the solve was asked for.
    time_limit_s
        Wall-clock seconds from then.
    threads
        How many an exact solver may use.
    cancelled
        Asked now and then whether to stop.
    """

    began_s: float
    time_limit_s: float
    threads: int = 2
    cancelled: Stop = never

    @property
    def deadline_s(self) -> float:
        """Monotonic seconds at which the time is up."""
        return self.began_s + self.time_limit_s

    def leniently(self, grace_s: float) -> Stop:
        """Return what says to stop once cancelled, or some seconds after now and after the time is up."""
        until_s = max(self.deadline_s, time.monotonic()) + grace_s
        return lambda: self.cancelled() or time.monotonic() >= until_s

    def is_spent(self, *, part: float = 1.0, grace_s: float = 0.0) -> bool:
        """Return whether to stop: cancelled, or a part of the time, and some seconds of grace, are over."""
        return self.cancelled() or time.monotonic() - self.began_s >= part * self.time_limit_s + grace_s
