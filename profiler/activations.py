"""Memory of one microbatch through a stage, read before, inside and after each op."""

from __future__ import annotations

import gc
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass

import torch

from profiler.errors import MeasurementError
from profiler.memory import Meter, meter_for
from profiler.microbatch import Stage, run_microbatch


@dataclass(frozen=True)
class _Reading:
    """Bytes of one microbatch: alive before an op and after it, and at most inside it."""

    before: int = 0
    after: int = 0
    peak: int = 0


def activation_bytes(stage: Stage, device: torch.device) -> dict[str, int]:
    """Return ``m_b_bytes``, ``m_w_bytes`` and ``m_peak_bytes`` as two microbatches show them.

    Raises
    ------
    MeasurementError
        When an op fails, or a microbatch leaves memory behind.
    """
    with meter_for(device) as meter:
        _read(stage, meter)  # so that what a module keeps of its last microbatch is alive on both sides
        gc.collect()
        readings, left = _read(stage, meter)
    if left != 0:
        raise MeasurementError(
            f"stage {stage.index}: found {left:+} bytes alive after a microbatch's last op; needed 0: W must give up"
            " what it worked on, and no module may collect tensors from microbatch to microbatch"
        )
    m_b, m_w = readings["F"].after, readings["W"].before
    level = {"F": m_b, "B": max(m_b, m_w), "W": m_w}
    m_peak = max(max(0, reading.peak - level[op]) for op, reading in readings.items())
    return {"m_b_bytes": m_b, "m_w_bytes": m_w, "m_peak_bytes": m_peak}


def _read(stage: Stage, meter: Meter) -> tuple[dict[str, _Reading], int]:
    base = meter.live_bytes()
    readings = dict.fromkeys("FBW", _Reading())

    @contextmanager
    def watch(op: str) -> Iterator[None]:
        before = meter.live_bytes() - base
        meter.peak_bytes()
        yield
        readings[op] = _Reading(before, meter.live_bytes() - base, meter.peak_bytes() - base)

    run_microbatch(stage, watch)
    return readings, meter.live_bytes() - base
