"""Schedules that repeat a building block: where each F and B of one microbatch stands, the same for every microbatch.

Building blocks are drawn for equal times (arXiv 2405.15362, section 3): T_F = T_B = T_W = 1, transfers take no time. A
block that is repeated every ``3 · stages per device`` units is the steady state. At both ends the schedule is squeezed:
ops move up as far as the block's own memory allows.
"""

from __future__ import annotations

from dataclasses import replace

import numpy as np

from heuristic.list_schedule import Policy, list_schedule, task_of
from heuristic.objective import least
from zbplan.instance import B, F, Instance, IntArray, Orders

SQUEEZES = (0.5, 1, 2, 4, 8)
"""By how many periods ops may move up, in the sequence in which they are tried."""


def repeat_block(instance: Instance, starts: IntArray, *, chunks_held: int, fused: bool = False) -> Orders:
    """Return the orders of a repeated block, squeezed as it is shortest at equal times.

    Parameters
    ----------
    starts : int64[2, stages]
        When F (row 0) and B (row 1) of a microbatch start on each stage, in units.
    chunks_held
        The memory of the block: how many F a device holds at once.
    fused
        Whether BW, of two units, stands in place of B and W.
    """
    chunks = instance.stages // instance.devices
    equal = at_equal_times(instance, room=max(chunks, chunks_held))
    task, period = task_of(equal), 3 * chunks
    policy = Policy(
        launch=np.arange(instance.microbatches),
        key=starts[:, :, None] + period * np.arange(instance.microbatches),
        slack=0,
        patience=0,
        caps=np.full((instance.stages, 2), instance.microbatches),
        weight_gap=1.0,
        backlog=np.full(instance.devices, instance.stages * instance.microbatches),
        split=np.full(instance.stages, not fused),
    )
    return least(equal, (list_schedule(task, policy._replace(slack=int(part * period))) for part in SQUEEZES))


def at_equal_times(instance: Instance, *, room: int) -> Instance:
    """Return an instance in which F, B and W take one unit and BW two, and every F holds one unit until its W or BW."""
    unit = np.ones_like(instance.peak)
    none = np.zeros_like(unit)
    return replace(
        instance,
        duration=np.stack([unit, unit, unit, 2 * unit]),
        forward_lag=np.zeros_like(instance.forward_lag),
        backward_lag=np.zeros_like(instance.backward_lag),
        hold=np.stack([unit, none, none, none]),
        release=np.stack([none, none, unit, unit]),
        peak=none,
        room=np.full(instance.devices, room, dtype=np.int64),
    )


def v_starts(first_f: IntArray, second_f: IntArray, second_b: IntArray, first_b: IntArray) -> IntArray:
    """Return the starts of a block on V placement from those on each device, in the sequence in which they run."""
    starts = np.zeros((2, 2 * len(first_f)), dtype=np.int64)
    starts[F] = np.concatenate([first_f, second_f[::-1]])
    starts[B] = np.concatenate([first_b, second_b[::-1]])
    return starts
