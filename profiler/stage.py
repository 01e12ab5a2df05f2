"""Times and memory of one stage, under the names of the profile's fields."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any

import torch
from torch import nn

from profiler.activations import activation_bytes
from profiler.clock import clock_for
from profiler.memory import state_after_a_step, static_bytes
from profiler.microbatch import Stage, named, run_microbatch
from profiler.model import OptimizerFactory, Splitter
from profiler.samples import Steps
from profiler.splitting import split_backward
from zbplan.duration import NEVER, Duration
from zbplan.profile import EngineMode


@dataclass(frozen=True)
class StageFigures:
    """What was measured of one stage.

    Attributes
    ----------
    times
        ``t_f_ms``, ``t_b_ms``, ``t_w_ms`` and ``t_bw_ms``.
    memory
        ``m_b_bytes``, ``m_w_bytes``, ``m_peak_bytes`` and ``m_static_bytes``.
    microbatch
        F, B and W from the start of the first to the end of the last, with whatever passes between them.
    dtype
        Of its parameters, in torch's word; empty without parameters.
    splittable
        False where it was to run BW only.
    """

    times: dict[str, Duration]
    memory: dict[str, int]
    microbatch: Duration
    dtype: str
    splittable: bool = True

    @property
    def busy_ms(self) -> float:
        """F, B and W of a microbatch."""
        return sum(self.times[field].median_ms for field in ("t_f_ms", "t_b_ms", "t_w_ms"))

    @classmethod
    def worst(cls, twins: Sequence[StageFigures]) -> StageFigures:
        """Return the slowest times and the largest sizes that the processes of one device measured."""
        if len(twins) == 1:
            return twins[0]
        first = twins[0]
        return cls(
            {field: max((twin.times[field] for twin in twins), key=_median) for field in first.times},
            {field: max(twin.memory[field] for twin in twins) for field in first.memory},
            max((twin.microbatch for twin in twins), key=_median),
            first.dtype,
            first.splittable,
        )


@dataclass(frozen=True)
class Way:
    """How every stage is measured.

    Attributes
    ----------
    engine_mode, splitter
        How the runtime runs the backward; the splitter is for ``weight_grad_store``.
    unsplit
        Stages that run BW only.
    optimizer
        Makes the optimizer whose state counts as static memory.
    """

    engine_mode: EngineMode
    splitter: Splitter | None
    unsplit: frozenset[int]
    optimizer: OptimizerFactory
    steps: Steps
    device: torch.device


def measure_stage(stage: Stage, way: Way) -> StageFigures:
    """Measure a stage; nothing else may run on its device.

    A stage whose backward is not split (a frozen one, or in engine mode ``fused``) runs F and BW only: its T_B is T_BW,
    its T_W and M_W are 0.

    Raises
    ------
    MeasurementError
        When an op fails, the backward cannot be split, or a microbatch leaves memory behind.
    """
    whole, microbatch = _time(stage, way)
    fused = whole["B"]
    if stage.index not in way.unsplit:
        split_backward(stage, way.engine_mode, way.splitter)
    if stage.splits:
        whole, microbatch = _time(stage, way)
    times = {"t_f_ms": whole["F"], "t_b_ms": whole["B"], "t_w_ms": whole["W"], "t_bw_ms": fused}
    memory = activation_bytes(stage, way.device)
    with named(stage.index, "optimizer step"):
        memory["m_static_bytes"] = static_bytes(stage.module, state_after_a_step(way.optimizer))
    return StageFigures(times, memory, microbatch, dtype_of(stage.module), stage.index not in way.unsplit)


def dtype_of(module: nn.Module) -> str:
    """Return the type of a module's parameters in torch's word; empty without parameters."""
    return next((str(parameter.dtype).removeprefix("torch.") for parameter in module.parameters()), "")


def _time(stage: Stage, way: Way) -> tuple[dict[str, Duration], Duration]:
    """Return the durations of F, B and W, and of all three in a row."""
    clock = clock_for(way.device)
    marks: defaultdict[str, list[tuple[Any, Any]]] = defaultdict(list)

    @contextmanager
    def watch(op: str) -> Iterator[None]:
        start = clock.mark()
        yield
        marks[op].append((start, clock.mark()))

    for _ in range(len(way.steps)):
        run_microbatch(stage, watch)
    last = next(op for op in "WBF" if op in marks)
    marks["all"] = [(first[0], end[1]) for first, end in zip(marks["F"], marks[last], strict=True)]
    times = {op: way.steps.duration([clock.elapsed_ms(*pair) for pair in pairs]) for op, pairs in marks.items()}
    return dict.fromkeys("FBW", NEVER) | times, times["all"]


def _median(duration: Duration) -> float:
    return duration.median_ms
