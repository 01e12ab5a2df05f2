"""What cutting a model anew gains, and how long the search for the cut takes.

Run ``python -m benchmarks.partition``. The uneven model is a profile that the authors of the Zero Bubble paper
published: 32 layers in 8 stages, whose last one holds the head and takes a third more than its share, so that no
schedule is faster than 3623.7 ms. Each of its stages is split in equal layers and the model is cut anew. With memory
for 2p microbatches, ramps need no time, so the bound is all work spread over all devices.
"""

from __future__ import annotations

import sys
import time
from typing import Any

from benchmarks.claim import Claim, exit_status
from heuristic import construct, partition
from solver import solve
from zbplan.problem import Problem
from zbplan.validate import check

UNEVEN = {
    "t_f_ms": [30.715, 29.233, 29.106, 29.078, 28.85, 28.919, 28.924, 41.678],
    "t_b_ms": [31.308, 29.344, 29.357, 29.455, 29.217, 29.384, 29.354, 38.731],
    "t_w_ms": [18.746, 18.789, 19.062, 19.367, 19.455, 19.967, 20.096, 32.833],
    "m_b_bytes": [943, 1240, 1240, 1240, 1240, 1240, 1240, 1071],
    "m_w_bytes": [410, 552, 552, 552, 552, 552, 552, 483],
}
TIMES = ("t_f_ms", "t_b_ms", "t_w_ms")
AS_IT_STANDS_MS = 3623.744
DEVICES, MICROBATCHES = 8, 32

SIZES = ((34, 8, 32), (66, 8, 64), (66, 16, 64), (130, 32, 128))
"""Layers, devices and microbatches of the searches that are timed."""


def uneven(layers_per_stage: int) -> Problem:
    """Return the uneven model with each stage in equal layers, its cut left open."""
    columns = {
        name: [round(value / layers_per_stage, 6) for value in values for _ in range(layers_per_stage)]
        for name, values in UNEVEN.items()
    }
    profile = {
        **UNEVEN,
        "stages": DEVICES,
        "t_comm_ms": 0.473,
        "layers": {"count": DEVICES * layers_per_stage, **columns},
    }
    fields = {"devices": DEVICES, "microbatches": MICROBATCHES, "memory_limit": 19840, "optimizer": "post_validated"}
    return Problem.parse({"profile": profile, **fields})


def transformer(layers: int, devices: int, microbatches: int) -> Problem:
    """Return a model of equal blocks between an embedding and a head, its cut left open."""
    blocks = layers - 2
    columns: dict[str, Any] = {
        "count": layers,
        "t_f_ms": [0.5, *[7.4] * blocks, 9.0],
        "t_b_ms": [0.5, *[7.3] * blocks, 8.5],
        "t_w_ms": [1.0, *[4.9] * blocks, 7.5],
        "m_b_bytes": [20, *[310] * blocks, 140],
        "m_w_bytes": [20, *[140] * blocks, 60],
        "m_static_bytes": [900, *[400] * blocks, 900],
        "boundary_bytes": [20, *[20] * blocks, 0],
    }
    one = dict.fromkeys((*TIMES, "m_b_bytes", "m_w_bytes"), 1)
    profile = {**one, "stages": 1, "t_comm_ms": 0.5, "layers": columns}
    asked = {"profile": profile, "devices": devices, "microbatches": microbatches, "memory_limit": "1.5x"}
    return Problem.parse(asked)


def claims() -> list[Claim]:
    """Solve the uneven model, cut anew, and compare with what it is bound by and with what it was."""
    problem = uneven(8)
    bound_ms = sum(map(sum, (UNEVEN[name] for name in TIMES))) * MICROBATCHES / DEVICES
    began_s = time.process_time()
    first_ms = check(construct(transformer(34, 8, 24))).metrics.iteration_ms
    first_s = time.process_time() - began_s
    best_ms = partition(transformer(34, 8, 24)).best.iteration_ms
    plan_ms = check(solve(problem)).metrics.iteration_ms
    return [
        Claim("uneven model cut anew, constructive plan, to all work spread evenly", _cut_ms(problem) / bound_ms, 1.03),
        Claim("the same after a solve of 10 s", plan_ms / bound_ms, 1.03),
        Claim("the same to the model as it stands", plan_ms / AS_IT_STANDS_MS, 0.76),
        Claim("34 layers, 8 devices, 24 microbatches: seconds of processor time to a first plan", first_s, 1.0),
        Claim("the same first plan to the best cut's", first_ms / best_ms, 1.03),
    ]


def _cut_ms(problem: Problem) -> float:
    """Return what the best constructive plan of all cuts takes, checked."""
    best = partition(problem).best
    return check(best.built.plan.answering(problem, best.starts)).metrics.iteration_ms


def report_sizes() -> None:
    """Print how long searches take, warm, and what they gain over the best of the even cuts."""
    partition(transformer(8, 2, 4), effort=2)
    for size in SIZES:
        began = time.perf_counter()
        found = partition(transformer(*size))
        took_s = time.perf_counter() - began
        even_ms = min(each.even.iteration_ms for each in found.candidates if each.even is not None)
        gain = 1 - found.best.iteration_ms / even_ms
        print("partition: {} layers, {} devices, {} microbatches".format(*size), f"{took_s:.1f} s, gain {gain:.2%}")


def main() -> int:
    """Print every claim; return 1 if one does not hold."""
    report_sizes()
    return exit_status(claims())


if __name__ == "__main__":
    sys.exit(main())
