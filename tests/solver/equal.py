"""Random instances with equal microbatches, small enough for an exact solver: where most bounds work."""

from __future__ import annotations

import random
from typing import Any

from zbplan.problem import Problem


def equal_problem(seed: int) -> Problem:
    """Return a random feasible problem with equal microbatches; the same one for the same seed."""
    rng = random.Random(seed)
    placement = rng.choice(["linear", "linear", "v", "interleaved"])
    devices = rng.randint(2, 3) if placement == "linear" else 2
    microbatches = rng.randint(2, 5) if placement == "linear" else rng.randint(2, 3)
    stages = devices if placement == "linear" else 2 * devices

    def measured(largest: int, least: int = 0) -> Any:
        if rng.random() < 0.6:
            return rng.randint(least, largest)
        return [rng.randint(least, largest) for _ in range(stages)]

    profile: dict[str, Any] = {"stages": stages, "t_comm_ms": rng.randint(0, 6)}
    profile |= {name: measured(10) for name in ("t_f_ms", "t_b_ms", "t_w_ms")}
    profile |= {"m_b_bytes": measured(6, 1), "m_w_bytes": measured(6)}
    if rng.random() < 0.2:
        profile["m_peak_bytes"] = measured(2)
    if rng.random() < 0.2:
        profile["splittable"] = [rng.random() < 0.8 for _ in range(stages)]
    optimizer = rng.choice(["synchronous", "post_validated"])
    fields = {"devices": devices, "microbatches": microbatches, "placement": placement, "optimizer": optimizer}
    instance = Problem.parse({"profile": profile, **fields}).instance()
    smallest = instance.memory.value(int((instance.smallest_room + instance.static).max()))
    factor = rng.choice([1, 1.5, 2, 3, 5])
    return Problem.parse({"profile": profile, **fields, "memory_limit": smallest * factor})
