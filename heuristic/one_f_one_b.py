"""1F1B: after warm-up every device alternates one F and one BW."""

from __future__ import annotations

from heuristic.alternate import alternate
from zbplan.instance import Instance, Orders


def one_f_one_b(instance: Instance) -> Orders:
    """Return the orders of 1F1B (Harlap et al., PipeDream, arXiv 1806.03377; paper, figure 2) with fused backward."""
    return alternate(instance, method="1f1b", depth=1, fused=True)
