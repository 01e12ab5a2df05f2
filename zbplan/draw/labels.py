"""Labels: numbers and names as people read them."""

from __future__ import annotations

import math
from collections.abc import Iterable

from rich.filesize import decimal

from zbplan.placement import Placement, interleaved, linear, v_shape
from zbplan.plan import Bound


def bytes_label(amount: float) -> str:
    """Return bytes with a unit, such as ``1.6 MB``."""
    return decimal(math.ceil(amount)).replace("bytes", "B").replace("byte", "B")


def span_label(labels: Iterable[str]) -> str:
    """Return one label where all are the same, else the first and the last distinct one in the given sequence."""
    distinct = list(dict.fromkeys(labels))
    return distinct[0] if len(distinct) == 1 else f"{distinct[0]} to {distinct[-1]}"


def placement_label(placement: Placement) -> str:
    """Return the name of a placement, or ``custom placement``."""
    devices = len(placement)
    chunks = len(placement[0])
    if placement == linear(devices):
        return "linear"
    if placement == v_shape(devices):
        return "v"
    return "interleaved" if placement == interleaved(devices, chunks) else "custom placement"


def bound_label(bound: Bound) -> str:
    """Return a bound with its reason, and how far the plan that it was compared with is from it."""
    proof = "proven optimal" if bound.proven_optimal else f"gap {bound.gap:.2%}"
    return f"bound {bound.iteration_ms:.6g} ms, {proof}: {bound.reason}"
