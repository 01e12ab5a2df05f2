"""The planner between the names: list schedules under a few policies, the best one kept."""

from __future__ import annotations

from collections.abc import Iterator
from itertools import product

import numpy as np

from heuristic.list_schedule import NEVER, Policy, list_schedule, task_of
from heuristic.objective import least
from zbplan.instance import Instance, Orders

WEIGHT_GAPS = (1.0, 0.5, 0.0)


def planner(instance: Instance) -> Orders:
    """Return the best list schedule, on any placement and under any memory limit under which a plan exists."""
    task = task_of(instance)
    schedules = (list_schedule(task, policy) for policy in _policies(instance))
    return least(instance, schedules)


def _policies(instance: Instance) -> Iterator[Policy]:
    """Backward before forward, later stages before earlier ones; W in long, in half as long and in all gaps."""
    stages, microbatches = instance.stages, instance.microbatches
    stage = np.arange(stages, dtype=np.int64)[:, None]
    for split, weight_gap in product((True, False), WEIGHT_GAPS):
        yield Policy(
            launch=np.arange(microbatches),
            key=np.stack([2 * stages - stage, stage]).repeat(microbatches, axis=2),
            slack=NEVER,
            patience=0,
            caps=np.full((stages, 2), microbatches),
            weight_gap=weight_gap,
            backlog=np.full(instance.devices, microbatches * stages),
            split=np.full(stages, split),
        )
