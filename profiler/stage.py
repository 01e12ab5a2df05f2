"""Times and memory of one stage, under the names of the profile's fields."""

from __future__ import annotations

import gc
from collections import defaultdict
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any

import torch
from torch import nn

from profiler.clock import clock_for
from profiler.errors import MeasurementError
from profiler.memory import Meter, meter_for, static_bytes
from profiler.microbatch import Stage, named, run_microbatch
from profiler.model import OptimizerFactory, Splitter
from profiler.samples import NEVER, Duration, Steps


@dataclass(frozen=True)
class StageFigures:
    """What was measured of one stage.

    Attributes
    ----------
    times
        ``t_f_ms``, ``t_b_ms``, ``t_w_ms`` and ``t_bw_ms``.
    memory
        ``m_b_bytes``, ``m_w_bytes``, ``m_peak_bytes`` and ``m_static_bytes``.
    dtype
        Of its parameters, in torch's word; empty without parameters.
    """

    times: dict[str, Duration]
    memory: dict[str, int]
    dtype: str


def measure_stage(
    stage: Stage, *, splitter: Splitter | None, optimizer: OptimizerFactory, steps: Steps, device: torch.device
) -> StageFigures:
    """Measure a stage; nothing else may run on its device.

    A frozen stage, or any stage without a splitter, runs F and BW only: its T_B is T_BW, its T_W and M_W are 0.

    Raises
    ------
    MeasurementError
        When an op fails, or a microbatch leaves memory behind.
    """
    fused = _time(stage, steps, device)
    if splitter is not None and any(parameter.requires_grad for parameter in stage.module.parameters()):
        with named(stage.index, "splitting the backward"):
            stage.dw_builder = splitter(stage.module)
    split = fused if stage.dw_builder is None else _time(stage, steps, device)
    times = {"t_f_ms": split["F"], "t_b_ms": split["B"], "t_w_ms": split["W"], "t_bw_ms": fused["B"]}
    memory = _activation_bytes(stage, device)
    with named(stage.index, "optimizer step"):
        memory["m_static_bytes"] = static_bytes(stage.module, optimizer)
    return StageFigures(times, memory, _dtype(stage.module))


def _time(stage: Stage, steps: Steps, device: torch.device) -> dict[str, Duration]:
    clock = clock_for(device)
    marks: defaultdict[str, list[tuple[Any, Any]]] = defaultdict(list)

    @contextmanager
    def watch(op: str) -> Iterator[None]:
        start = clock.mark()
        yield
        marks[op].append((start, clock.mark()))

    for _ in range(len(steps)):
        run_microbatch(stage, watch)
    times = {op: steps.duration([clock.elapsed_ms(*pair) for pair in pairs]) for op, pairs in marks.items()}
    return dict.fromkeys("FBW", NEVER) | times


@dataclass(frozen=True)
class _Reading:
    """Bytes of one microbatch: alive before an op and after it, and at most inside it."""

    before: int = 0
    after: int = 0
    peak: int = 0


def _activation_bytes(stage: Stage, device: torch.device) -> dict[str, int]:
    with meter_for(device) as meter:
        _read(stage, meter)  # so that what a module keeps of its last microbatch is alive on both sides
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
    gc.collect()
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


def _dtype(module: nn.Module) -> str:
    return next((str(parameter.dtype).removeprefix("torch.") for parameter in module.parameters()), "")
