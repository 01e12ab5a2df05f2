"""ZB-H2: twice the warm-up of ZB-H1, so that equal times and free transfers leave no bubble."""

from __future__ import annotations

from heuristic.alternate import alternate
from zbplan.instance import Instance, Orders


def zb_h2(instance: Instance) -> Orders:
    """Return the handcrafted orders of ZB-H2 (paper, section 2.2 and figure 3 bottom).

    With equal stages device i, from 0, holds ``(2p - 2i - 1) · M_B + 2i · M_W`` (paper, Table 2).
    """
    return alternate(instance, method="zb_h2", depth=2, fused=False)
