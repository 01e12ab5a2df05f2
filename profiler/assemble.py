"""From figures to the profile that holds them, and how sure they are."""

from __future__ import annotations

import platform
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

import torch
from pydantic import JsonValue

from profiler.stage import StageFigures
from zbplan.duration import DIGITS, Duration
from zbplan.evidence import TIMES, Check, Samples
from zbplan.layers import even_starts
from zbplan.placement import Placement
from zbplan.profile import EngineMode, Profile

MEMORY = ("m_b_bytes", "m_w_bytes", "m_static_bytes", "m_peak_bytes")


@dataclass(frozen=True, kw_only=True)
class Measurement:
    """All that was measured of a pipeline.

    Attributes
    ----------
    figures
        Per stage, or per layer.
    boundary_bytes
        One forward transfer behind each of them but the last.
    transfers
        T_comm forward and backward of each boundary; None where it is given.
    t_comm_ms
        The given T_comm.
    placement
        On which T_comm was measured.
    forced
        What ``--force`` let pass.
    """

    name: str
    engine_mode: EngineMode
    figures: Sequence[StageFigures]
    boundary_bytes: Sequence[int]
    transfers: Sequence[tuple[Duration, Duration]] | None
    t_comm_ms: float | None
    placement: Placement
    forced: Sequence[str]
    checks: Sequence[Check]
    environment: Mapping[str, Any] = field(default_factory=dict)

    def columns(self) -> dict[str, Any]:
        """Return the measured fields, one number per stage, and the statistics behind the times.

        The fused backward is left out unless it was timed on every stage that has a backward.
        """
        durations = {name: [figure.times[name] for figure in self.figures] for name in TIMES}
        backwards = zip(durations["t_b_ms"], durations["t_bw_ms"], strict=True)
        if any(b.samples and not fused.samples for b, fused in backwards):
            del durations["t_bw_ms"]
        return {
            **{name: _medians(column) for name, column in durations.items()},
            **{name: [figure.memory[name] for figure in self.figures] for name in MEMORY},
            "boundary_bytes": [*self.boundary_bytes, 0],
            "splittable": [figure.splittable for figure in self.figures],
            "statistics": {name: Samples.of(column) for name, column in durations.items()},
        }

    def shared(self) -> dict[str, Any]:
        """Return what a profile of stages and one of layers have in common."""
        return {
            "name": self.name,
            "engine_mode": self.engine_mode,
            "estimated": [] if self.transfers is not None else ["t_comm_ms"],
            "forced": list(self.forced),
            "checks": list(self.checks),
            "environment": {**self.environment, "dtype": _dtype(self.figures)},
        }


def stage_profile(found: Measurement) -> Profile:
    """Return the profile of measured stages; T_comm holds for the placement on which it was measured."""
    columns, shared = found.columns(), found.shared()
    t_comm_ms: Any = found.t_comm_ms
    if found.transfers is not None:
        ways = {"forward": [there for there, _ in found.transfers], "backward": [back for _, back in found.transfers]}
        t_comm_ms = {way: _medians(column) for way, column in ways.items()}
        columns["statistics"]["t_comm_ms"] = {way: Samples.of(column) for way, column in ways.items()}
        shared["environment"]["placement"] = found.placement
    return Profile.parse({"stages": len(found.figures), **columns, **shared, "t_comm_ms": t_comm_ms})


def layer_profile(found: Measurement, stages: int) -> Profile:
    """Return the profile of measured layers, cut evenly in stages.

    T_comm is that of the slowest transfer, in whichever direction: it has to hold for any cut.
    """
    columns = found.columns()
    count = len(found.figures)
    t_comm_ms = found.t_comm_ms
    if found.transfers is not None:
        t_comm_ms = max((duration.median_ms for pair in found.transfers for duration in pair), default=0.0)
    layers = {"count": count, **columns}
    whole = Profile.parse({"stages": count, **columns, **found.shared(), "t_comm_ms": t_comm_ms, "layers": layers})
    return whole.cut(even_starts(count, stages)).model_copy(update={"checks": whole.checks})


def describe(device: torch.device) -> dict[str, JsonValue]:
    """Return what a profile keeps of the machine that it was measured on."""
    if device.type == "cuda":
        name = torch.cuda.get_device_name(device)
    else:
        name = f"CPU {platform.machine()} {torch.backends.cpu.get_cpu_capability()}"
    return {"device": name, "torch": torch.__version__, "threads": torch.get_num_threads()}


def _medians(column: Sequence[Duration]) -> list[float]:
    """Return the medians as a profile keeps them."""
    return [round(duration.median_ms, DIGITS) for duration in column]


def _dtype(figures: Sequence[StageFigures]) -> str:
    return ", ".join(dict.fromkeys(figure.dtype for figure in figures if figure.dtype))
