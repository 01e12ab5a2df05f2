"""1F1B-V: 1F1B on V placement, which holds two thirds of what 1F1B holds."""

from __future__ import annotations

import numpy as np

from heuristic.block import repeat_block, v_starts
from heuristic.shape import v_shaped
from zbplan.instance import Instance, IntArray, Orders


def one_f_one_b_v(instance: Instance) -> Orders:
    """Return the orders of 1F1B-V: the V placement of arXiv 2405.15362 with fused backward.

    With equal times six units start a microbatch, and F, F, BW and BW fill them on every device. F passes from device
    to device without a wait. BW of two units cannot: on every third device it waits three units going down, and on the
    next one three going up. So a microbatch stays 8 units per device, and each device holds two thirds of what 1F1B
    holds on its first.
    """
    v_shaped(instance, "1f1b_v")
    return repeat_block(instance, _starts(instance.devices), chunks_held=-(-4 * instance.devices // 3) + 1, fused=True)


def _starts(p: int) -> IntArray:
    device = np.arange(p)
    from_below = p - 1 - device
    second_f = p + from_below
    # On device 0 BW of the last stage follows F, where the block leaves room for it.
    second_b = second_f[0] + 1 + 3 * ((p - 1) % 3 == 2) + 2 * device
    second_b[1:] += 3 * np.cumsum(from_below[1:] % 3 == 0)
    first_b = second_b[-1] + 2 + 2 * from_below + 3 * ((from_below + 1) // 3)
    return v_starts(device, second_f, second_b, first_b)
