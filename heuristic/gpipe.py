"""GPipe: every F, then every BW."""

from __future__ import annotations

from zbplan.instance import BW, F, Instance, Orders


def gpipe(instance: Instance) -> Orders:
    """Return the orders of GPipe (Huang et al., arXiv 1811.06965, section 2.3) with fused backward.

    A device that holds several stages runs them one after the other, forward and back.
    """
    return Orders.of([_device(instance, stages) for stages in instance.stages_of])


def _device(instance: Instance, stages: tuple[int, ...]) -> list[int]:
    passes = [(F, stage) for stage in stages] + [(BW, stage) for stage in reversed(stages)]
    return [
        instance.code(kind, stage, microbatch) for kind, stage in passes for microbatch in range(instance.microbatches)
    ]
