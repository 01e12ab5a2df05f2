"""Fusing: BW in place of a B that its own W follows at once, where the fused op is the shorter one.

The gradient then leaves later, by as much as W took; so a device fuses all such pairs or none, whichever makes the plan
shorter. No op starts between the two, and what BW holds B has held: memory that was enough is enough.
"""

from __future__ import annotations

from collections.abc import Iterator

import numpy as np

from heuristic.objective import at_best
from zbplan.instance import BW, B, BoolArray, Instance, IntArray, Orders, W


def fuse(instance: Instance, orders: Orders) -> Orders:
    """Return orders with pairs of B and W fused on some devices; these themselves where that makes nothing shorter."""
    pairs = _pairs(instance, orders)
    if not pairs.any():
        return orders
    best, lowest, chosen = orders, at_best(instance, orders), np.zeros(instance.devices, dtype=np.bool_)
    for devices in _trials(np.bincount(_device_of(orders)[pairs], minlength=instance.devices) > 0):
        if not (devices & ~chosen).any():
            continue
        fused = _fused(instance, orders, pairs & (chosen | devices)[_device_of(orders)])
        if (objective := at_best(instance, fused)) < lowest:
            best, lowest, chosen = fused, objective, chosen | devices
    return best


def _trials(able: BoolArray) -> Iterator[BoolArray]:
    """Yield sets of devices: all that have pairs, then each of them."""
    yield able
    for device in np.flatnonzero(able):
        yield np.arange(len(able)) == device


def _device_of(orders: Orders) -> IntArray:
    return np.repeat(np.arange(len(orders.offsets) - 1), np.diff(orders.offsets))


def _pairs(instance: Instance, orders: Orders) -> BoolArray:
    """Return where a B stands that its W follows, and that would be shorter with it as BW."""
    duration = instance.duration
    shorter = (duration[BW] < duration[B] + duration[W]).ravel()
    kind, cell = np.divmod(orders.ops, shorter.size)
    followed = np.zeros(len(kind), dtype=np.bool_)
    followed[:-1] = (kind[:-1] == B) & (kind[1:] == W) & (cell[:-1] == cell[1:])
    pairs: BoolArray = followed & shorter[cell]
    return pairs


def _fused(instance: Instance, orders: Orders, pairs: BoolArray) -> Orders:
    kept = np.ones(len(pairs), dtype=np.bool_)
    kept[1:] = ~pairs[:-1]
    ops = orders.ops + (BW - B) * instance.duration[B].size * pairs
    return Orders(ops[kept], np.concatenate([[0], np.cumsum(kept)])[orders.offsets])
