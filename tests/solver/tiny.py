"""Random instances small enough for brute force, of every kind."""

from __future__ import annotations

import random
from typing import Any

from zbplan.problem import Problem

SHAPES = [
    ("linear", 1, 1, 3),
    ("linear", 2, 2, 2),
    ("linear", 2, 2, 3),
    ("linear", 3, 3, 1),
    ("linear", 3, 3, 2),
    ("v", 1, 2, 2),
    ("v", 2, 4, 1),
    ("v", 2, 4, 2),
    ("interleaved", 2, 4, 2),
]
"""Placement, devices, stages and microbatches."""


Shape = tuple[str, int, int, int]


def tiny_problem(seed: int, shape: Shape | None = None) -> Problem:
    """Return a random feasible problem, of a shape if one is given; the same one for the same seed."""
    rng = random.Random(seed)
    placement, devices, stages, microbatches = shape or rng.choice(SHAPES)
    profile: dict[str, Any] = {"stages": stages, "t_comm_ms": rng.randint(0, 3)}
    for name, largest in (("t_f_ms", 5), ("t_b_ms", 5), ("t_w_ms", 5), ("m_b_bytes", 3), ("m_w_bytes", 3)):
        profile[name] = _measured(rng, largest, stages, microbatches)
    if rng.random() < 0.3:
        profile["m_peak_bytes"] = _measured(rng, 1, stages, microbatches)
    if rng.random() < 0.5:
        profile["t_bw_ms"] = _measured(rng, 9, stages, microbatches)
    profile["splittable"] = [rng.random() < 0.8 for _ in range(stages)]
    optimizer = rng.choice(["synchronous", "post_validated"])
    fields = {"devices": devices, "microbatches": microbatches, "placement": placement, "optimizer": optimizer}
    instance = Problem.parse({"profile": profile, **fields}).instance()
    smallest = (instance.smallest_room + instance.static).tolist()
    limits = [instance.memory.value(units) + rng.choice([0, 0, 1, 2, 4, 99]) for units in smallest]
    return Problem.parse({"profile": profile, **fields, "memory_limit": limits})


def _measured(rng: random.Random, largest: int, stages: int, microbatches: int) -> Any:
    """Return one number, or per stage one number or one per microbatch, so that stages differ in this too."""

    def each() -> list[int]:
        return [rng.randint(0, largest) for _ in range(microbatches)]

    if rng.random() < 0.4:
        return rng.randint(0, largest)
    return [rng.choice([each(), rng.randint(0, largest)]) for _ in range(stages)]
