"""V-Half: the building block on V placement that holds half of what 1F1B holds, and keeps every device busy."""

from __future__ import annotations

import numpy as np

from heuristic.shape import v_shaped
from heuristic.squeeze import squeeze
from zbplan.instance import Instance, Orders


def v_half(instance: Instance) -> Orders:
    """Return the orders of V-Half (arXiv 2405.15362, section 3.3 and figure 3).

    Going down, F and B wait one unit on every device; going up they do not wait. With p devices and equal times it
    holds ``(p + 2) // 2`` microbatches.
    """
    v_shaped(instance, "v_half")
    p = instance.devices
    device = np.arange(p)
    pause = 3 if p % 2 == 0 else 0  # else B of one microbatch would fall onto F of another
    starts = [2 * device, 3 * p - 2 - device, 3 * p - 1 + pause + 2 * device, 6 * p - 2 + pause - device]
    return squeeze(instance, np.stack(starts, axis=1))
