"""V-Min: the building block on V placement that holds least, a third of what 1F1B holds."""

from __future__ import annotations

import numpy as np

from heuristic.shape import v_shaped
from heuristic.squeeze import squeeze
from zbplan.instance import Instance, Orders


def v_min(instance: Instance) -> Orders:
    """Return the orders of V-Min (arXiv 2405.15362, section 3.3 and figure 3).

    Going down and up, F and B pass from device to device without a wait. With p devices and equal times it holds
    ``(p + 4) // 3`` microbatches.
    """
    v_shaped(instance, "v_min")
    p = instance.devices
    device = np.arange(p)
    pause = 2 if p % 3 == 0 else 0  # else B of one microbatch would fall onto F of another
    starts = [device, 2 * p - 1 - device, 2 * p + pause + device, 4 * p + pause - 1 - device]
    return squeeze(instance, np.stack(starts, axis=1))
