"""Does an iteration take as long as its plan says? Measured against planned, and against torch's own schedules.

``python -m benchmarks.emulated_stages`` runs four ranks whose ops are sleeps of a profile's length; transfers of 256
KiB are real. It prints a row per claim and fails if one does not hold. Needs a machine that does nothing else.
"""

from __future__ import annotations

import json
import sys
import tempfile
from collections.abc import Iterator
from pathlib import Path
from typing import Any, NamedTuple

from torch.distributed.pipelining._schedule_visualizer import get_schedule_ops

import heuristic
from benchmarks.claim import Claim, exit_status
from benchmarks.ranks import run_ranks
from zbplan.formats import pytorch_csv
from zbplan.graph import critical_path
from zbplan.plan import Plan
from zbplan.problem import Problem

RANKS, MICROBATCHES = 4, 8
COMM_MS = 0.5
"""What 256 KiB take between two processes of one machine."""


class Speed(NamedTuple):
    """How long the ops of all stages sleep, and how much longer than planned an iteration may take."""

    f_ms: float
    b_ms: float
    w_ms: float
    most: float


SPEEDS = {"35 to 75 ms": Speed(50.0, 75.0, 35.0, 1.02), "9 to 19 ms": Speed(13.0, 19.0, 9.0, 1.05)}
ASKED = {
    "1F1B": ("linear", "1x", "1f1b"),
    "ZB-H1": ("linear", "1x", "zb_h1"),
    "best at 1p": ("linear", "1x", "heuristic"),
    "best at 2p": ("linear", "2x", "heuristic"),
    "best V at 1p": ("v", "1x", "heuristic"),
}
"""Placement, memory limit and method of every plan that is held against its prediction."""
TORCHS = {"1F1B": "linear", "InterleavedZeroBubble": "interleaved", "ZBVZeroBubble": "v"}
"""torch's own schedules, and where they place stages."""


class Run(NamedTuple):
    """An order to run: by a ``PlanSchedule``, or by torch's own schedule of that name, whose order the plan has."""

    plan: Plan
    torchs: str | None = None


def problem_of(speed: Speed, placement: str, memory_limit: str | float | None, method: str) -> Problem:
    """Return what is planned."""
    profile = {"stages": RANKS * (1 if placement == "linear" else 2), "t_comm_ms": COMM_MS}
    profile |= {"t_f_ms": speed.f_ms, "t_b_ms": speed.b_ms, "t_w_ms": speed.w_ms, "m_b_bytes": 1, "m_w_bytes": 1}
    asked = {"profile": profile, "devices": RANKS, "microbatches": MICROBATCHES, "placement": placement}
    return Problem.parse(asked | {"memory_limit": memory_limit, "method": method})


def torchs_plan(name: str, speed: Speed) -> Plan:
    """Return what torch's own schedule does, as a plan."""
    placement = TORCHS[name]
    if name == "1F1B":  # what torch lists of it starts with microbatch 1 on the last rank; what it runs does not
        return heuristic.construct(problem_of(speed, placement, None, "1f1b"))
    text = "\n".join(
        ",".join("" if op is None else str(op) for op in rank) for rank in get_schedule_ops(name, RANKS, MICROBATCHES)
    )
    return pytorch_csv.to_plan(pytorch_csv.read(text), problem_of(speed, placement, None, "auto"))


def runs() -> Iterator[tuple[str, Run]]:
    """Yield everything that is run, by name."""
    for length, speed in SPEEDS.items():
        for name, asked in ASKED.items():
            yield f"{name}, {length}", Run(heuristic.construct(problem_of(speed, *asked)))
    speed = SPEEDS["35 to 75 ms"]
    for name, placement in TORCHS.items():
        plan = torchs_plan(name, speed)
        yield f"torch's {name}", Run(plan, name)
        within = problem_of(speed, placement, max(plan.metrics.peak_bytes), "heuristic")
        yield f"best beside {name}", Run(heuristic.construct(within, effort=heuristic.THOROUGH))


def measured_ms(every: dict[str, Run]) -> dict[str, list[float]]:
    """Return each run's iterations."""
    with tempfile.TemporaryDirectory() as folder:
        listed = {name: {"plan": run.plan.to_json(), "torchs": run.torchs} for name, run in every.items()}
        (Path(folder) / "runs.json").write_text(json.dumps(listed), encoding="utf-8")
        run_ranks(RANKS, "benchmarks.emulated_stages_worker", folder)
        found: dict[str, Any] = json.loads((Path(folder) / "found.json").read_text())
        return found


def claims(every: dict[str, Run], iterations_ms: dict[str, list[float]]) -> Iterator[Claim]:
    """Hold what was measured against what is planned; what disturbs only ever adds, so the least counts."""
    found = {name: min(iterations_ms[name]) for name in every}
    planned = {name: run.plan.metrics.iteration_ms for name, run in every.items()}
    for name, run in every.items():
        ops, rounds = len(critical_path(run.plan)), [round(iteration, 1) for iteration in iterations_ms[name]]
        each = (found[name] - planned[name]) / ops
        print(f"     {name}: planned {planned[name]:.1f} ms, measured {rounds}, {each:+.3f} ms per op of {ops}")
    for length, speed in SPEEDS.items():
        for name in ASKED:
            run_name = f"{name}, {length}"
            yield Claim(f"{run_name}: iteration / plan", found[run_name] / planned[run_name], most=speed.most)
    for name in TORCHS:
        theirs, ours = f"torch's {name}", f"best beside {name}"
        predicted, ratio = planned[theirs] / planned[ours], found[theirs] / found[ours]
        text = f"{theirs} / best in its memory, predicted {predicted:.4f}"
        yield Claim(text, ratio, most=1.03 * predicted, least=max(1.0, 0.97 * predicted))


def main() -> int:
    """Print all claims; return 1 if one does not hold."""
    every = dict(runs())
    return exit_status(claims(every, measured_ms(every)))


if __name__ == "__main__":
    sys.exit(main())
