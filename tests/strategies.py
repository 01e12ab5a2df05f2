"""Hypothesis strategies: random problems of every kind, and random legal orders for them."""

from __future__ import annotations

import random
from typing import Any

from hypothesis import strategies as st

from zbplan.instance import BW, B, F, Instance, Orders, W
from zbplan.problem import Problem

TIMES = st.integers(min_value=0, max_value=40).map(lambda quarter: quarter / 4)
BYTES = st.integers(min_value=0, max_value=12).map(lambda half: half / 2)


def per_stage(values: st.SearchStrategy[float], stages: int, microbatches: int) -> st.SearchStrategy[Any]:
    """One number, one per stage, or one per stage and microbatch."""
    each = st.lists(values, min_size=microbatches, max_size=microbatches)
    return st.one_of(
        values,
        st.lists(values, min_size=stages, max_size=stages),
        st.lists(st.one_of(values, each), min_size=stages, max_size=stages),
    )


@st.composite
def problems(
    draw: st.DrawFn,
    *,
    placements: tuple[str, ...] = ("linear",),
    max_devices: int = 4,
    max_microbatches: int = 5,
    limited: bool = True,
) -> Problem:
    """Draw a feasible problem; limits lie between the smallest feasible room and no limit."""
    devices = draw(st.integers(1, max_devices))
    microbatches = draw(st.integers(1, max_microbatches))
    name = draw(st.sampled_from(placements))
    chunks = {"linear": 1, "v": 2}.get(name) or draw(st.integers(2, 3))
    stages = devices * chunks
    comm = st.lists(TIMES, min_size=stages - 1, max_size=stages - 1)
    profile: dict[str, Any] = {"stages": stages}
    for field in ("t_f_ms", "t_b_ms", "t_w_ms"):
        profile[field] = draw(per_stage(TIMES, stages, microbatches))
    for field in ("m_b_bytes", "m_w_bytes", "m_peak_bytes"):
        profile[field] = draw(per_stage(BYTES, stages, microbatches))
    profile["m_static_bytes"] = draw(st.one_of(BYTES, st.lists(BYTES, min_size=stages, max_size=stages)))
    profile["t_comm_ms"] = draw(st.one_of(TIMES, st.fixed_dictionaries({"forward": comm, "backward": comm})))
    profile["environment"] = {"placement": name}
    if draw(st.booleans()):
        profile["t_bw_ms"] = draw(per_stage(TIMES, stages, microbatches))
    profile["splittable"] = draw(st.one_of(st.just(True), st.lists(st.booleans(), min_size=stages, max_size=stages)))
    optimizer = draw(st.sampled_from(["synchronous", "post_validated"]))
    fields = {"profile": profile, "devices": devices, "microbatches": microbatches, "placement": name}
    problem = Problem.parse({**fields, "optimizer": optimizer})
    return draw(limits(problem)) if limited else problem


@st.composite
def limits(draw: st.DrawFn, problem: Problem) -> Problem:
    """Draw a feasible memory limit for a problem."""
    instance = problem.instance()
    smallest = instance.smallest_room + instance.static
    extra = draw(st.one_of(st.none(), st.lists(BYTES, min_size=problem.devices, max_size=problem.devices)))
    if extra is None:
        return problem
    limit = [instance.memory.value(least) + more for least, more in zip(smallest.tolist(), extra, strict=True)]
    return problem.model_copy(update={"memory_limit": limit})


def random_orders(instance: Instance, seed: int) -> Orders:
    """Return legal orders, ignoring memory: a random topological order of all ops, BW or B and W at random."""
    rng = random.Random(seed)
    code = instance.code
    per_device: list[list[int]] = [[] for _ in range(instance.devices)]
    ready = [(F, 0, microbatch) for microbatch in range(instance.microbatches)]
    while ready:
        kind, stage, microbatch = ready.pop(rng.randrange(len(ready)))
        if kind == B and (not instance.splittable[stage] or rng.random() < 0.3):
            kind = BW
        per_device[instance.device_of[stage]].append(code(kind, stage, microbatch))
        if kind == F:
            ready.append((F, stage + 1, microbatch) if stage + 1 < instance.stages else (B, stage, microbatch))
        if kind in (B, BW) and stage > 0:
            ready.append((B, stage - 1, microbatch))
        if kind == B:
            ready.append((W, stage, microbatch))
    return Orders.of(per_device)
