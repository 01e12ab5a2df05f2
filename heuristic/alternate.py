"""The alternating pattern that 1F1B, ZB-H1 and ZB-H2 share: warm up, then one F, one B and one W in turn."""

from __future__ import annotations

from heuristic.shape import one_stage_per_device
from zbplan.instance import BW, B, F, Instance, Orders, W


def alternate(instance: Instance, *, method: str, depth: int, fused: bool) -> Orders:
    """Return the orders of an alternating schedule on linear placement.

    Stage s of p runs ``depth · (p - 1 - s)`` F before it alternates F and B, and lets W lag ``depth · s`` microbatches
    behind B: what a later stage does not hold for B it holds for W. A stage that runs BW has no W to delay.
    """
    one_stage_per_device(instance, method)
    return Orders.of([_stage(instance, stage, depth, fused) for (stage,) in instance.stages_of])


def _stage(instance: Instance, stage: int, depth: int, fused: bool) -> list[int]:
    m = instance.microbatches
    warm_up = min(m, depth * (instance.stages - 1 - stage))
    split = bool(instance.splittable[stage]) and not fused
    delay = depth * stage
    ops = [instance.code(F, stage, microbatch) for microbatch in range(warm_up)]
    for microbatch in range(m):
        if warm_up + microbatch < m:
            ops.append(instance.code(F, stage, warm_up + microbatch))
        ops.append(instance.code(B if split else BW, stage, microbatch))
        if split and microbatch >= delay:
            ops.append(instance.code(W, stage, microbatch - delay))
    if split:
        ops.extend(instance.code(W, stage, microbatch) for microbatch in range(max(0, m - delay), m))
    return ops
