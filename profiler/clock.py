"""Clocks that time ops without making the device wait while it works."""

from __future__ import annotations

import time
from typing import Any, Protocol

import torch


class Clock(Protocol):
    """Marks moments while ops run; the time between two marks is read when all have run."""

    def mark(self) -> Any:
        """Return this moment."""

    def elapsed_ms(self, start: Any, end: Any) -> float:
        """Return the milliseconds between two moments."""


class HostClock:
    """The monotonic clock of the host: a CPU op has run when its call returns."""

    def mark(self) -> int:
        """Return this moment in nanoseconds."""
        return time.perf_counter_ns()

    def elapsed_ms(self, start: int, end: int) -> float:
        """Return the milliseconds between two moments."""
        return (end - start) / 1e6


class CudaClock:
    """Events on the current stream of a CUDA device, so that the host may run ahead while they are recorded."""

    def __init__(self, device: torch.device) -> None:
        self._device = device

    def mark(self) -> torch.cuda.Event:
        """Return the moment when all that is queued so far has run."""
        event: torch.cuda.Event = torch.cuda.Event(enable_timing=True)  # type: ignore[no-untyped-call]
        event.record(torch.cuda.current_stream(self._device))
        return event

    def elapsed_ms(self, start: torch.cuda.Event, end: torch.cuda.Event) -> float:
        """Return the milliseconds between two moments; waits for the second."""
        end.synchronize()
        elapsed_ms: float = start.elapsed_time(end)
        return elapsed_ms


def clock_for(device: torch.device) -> Clock:
    """Return the clock of a device."""
    return CudaClock(device) if device.type == "cuda" else HostClock()
