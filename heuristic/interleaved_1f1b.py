"""Interleaved 1F1B: several stages per device, dealt round robin, so that the pipeline fills sooner."""

from __future__ import annotations

from heuristic.shape import dealt_in_turn
from zbplan.instance import BW, F, Instance, Orders


def interleaved_1f1b(instance: Instance) -> Orders:
    """Return the orders of interleaved 1F1B (Narayanan et al., arXiv 2104.04473, section 2.2) with fused backward.

    Microbatches go through a device's stages in groups of p. Where the last group is not full, the schedule is that of
    a full one without the ops of the microbatches that are not there.
    """
    dealt_in_turn(instance, "interleaved_1f1b")
    return Orders.of([_device(instance, device) for device in range(instance.devices)])


def _device(instance: Instance, device: int) -> list[int]:
    p, stages = instance.devices, instance.stages_of[device]
    groups = range(0, instance.microbatches, p)
    forward = [(F, stage, first + index) for first in groups for stage in stages for index in range(p)]
    backward = [(BW, stage, first + index) for first in groups for stage in reversed(stages) for index in range(p)]
    warm_up = min(len(forward), 2 * (p - 1 - device) + (len(stages) - 1) * p)
    alternating = [op for pair in zip(forward[warm_up:], backward, strict=False) for op in pair]
    ops = [*forward[:warm_up], *alternating, *backward[len(forward) - warm_up :]]
    return [
        instance.code(kind, stage, microbatch) for kind, stage, microbatch in ops if microbatch < instance.microbatches
    ]
