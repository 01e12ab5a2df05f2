"""From figures to the profile that holds them, and how sure they are."""

from __future__ import annotations

import platform
from collections.abc import Mapping, Sequence
from typing import Any

import torch
from pydantic import JsonValue

from profiler.samples import Duration
from profiler.stage import StageFigures
from profiler.transfer import Boundary
from zbplan.placement import Placement
from zbplan.profile import EngineMode, Profile

TIMES = ("t_f_ms", "t_b_ms", "t_w_ms", "t_bw_ms")
MEMORY = ("m_b_bytes", "m_w_bytes", "m_static_bytes", "m_peak_bytes")


def assemble(
    *,
    name: str,
    engine_mode: EngineMode,
    figures: Sequence[StageFigures],
    boundaries: Sequence[Boundary],
    transfers: Sequence[tuple[Duration, Duration]],
    placement: Placement,
    t_comm_ms: float | None,
    environment: Mapping[str, Any],
) -> Profile:
    """Return the profile of figures per stage and of transfers, forward and backward, per boundary.

    A T_comm that is given stands for the transfers; measured ones hold for the placement on which they were measured.
    Beside the environment that it is given, the profile's says in ``statistics``, for each measured time, the median
    absolute deviation (``spread_ms``) and the number of ``samples`` behind each median.
    """
    durations = {field: [figure.times[field] for figure in figures] for field in TIMES}
    ways = {"forward": [there for there, _ in transfers], "backward": [back for _, back in transfers]}
    measured = {} if t_comm_ms is not None else {"placement": placement}
    statistics = {
        **{field: _statistics(column) for field, column in durations.items()},
        "t_comm_ms": {way: _statistics(column) for way, column in ways.items()} if measured else "given",
    }
    return Profile.parse(
        {
            "name": name,
            "stages": len(figures),
            "engine_mode": engine_mode,
            **{field: _medians(column) for field, column in durations.items()},
            "t_comm_ms": {way: _medians(column) for way, column in ways.items()} if measured else t_comm_ms,
            **{field: [figure.memory[field] for figure in figures] for field in MEMORY},
            "boundary_bytes": [*(boundary.nbytes for boundary in boundaries), 0],
            "environment": {**environment, **measured, "dtype": _dtype(figures), "statistics": statistics},
        }
    )


def describe(device: torch.device) -> dict[str, JsonValue]:
    """Return what a profile keeps of the machine that it was measured on."""
    if device.type == "cuda":
        name = torch.cuda.get_device_name(device)
    else:
        name = f"CPU {platform.machine()} {torch.backends.cpu.get_cpu_capability()}"
    return {"device": name, "torch": torch.__version__, "threads": torch.get_num_threads()}


def _medians(column: Sequence[Duration]) -> list[float]:
    return [round(duration.median_ms, 6) for duration in column]


def _statistics(column: Sequence[Duration]) -> dict[str, JsonValue]:
    return {
        "spread_ms": [round(duration.spread_ms, 6) for duration in column],
        "samples": [duration.samples for duration in column],
    }


def _dtype(figures: Sequence[StageFigures]) -> str:
    return ", ".join(dict.fromkeys(figure.dtype for figure in figures if figure.dtype))
