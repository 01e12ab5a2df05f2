"""ZB-H1: 1F1B with W delayed so that no device holds more than the first one."""

from __future__ import annotations

from heuristic.alternate import alternate
from zbplan.instance import Instance, Orders


def zb_h1(instance: Instance) -> Orders:
    """Return the handcrafted orders of ZB-H1 (paper, section 2.1 and figure 3 top).

    With equal stages device i, from 0, holds ``(p - i) · M_B + i · M_W`` (paper, Table 2).
    """
    return alternate(instance, method="zb_h1", depth=1, fused=False)
