"""Unroll: the orders for few microbatches, with the block that repeats in their middle repeated more often.

Bubbles lie in the ramps, which do not depend on how many microbatches come between them. So an instance of equal
microbatches is solved for few of them, and what its devices do between the ramps is repeated for the rest.

Equal microbatches pass every stage in sequence (``device_ops``), so what a device does is told by kinds and stages
alone. A *block* of n microbatches is a stretch of that in which every stage runs n F, n backward ops and, where B is
apart, n W. After it memory is as full as before, so repeating the block keeps the memory that the orders take: only
whether devices then wait for each other, and for how long, remains to be simulated.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, replace
from itertools import product

import numpy as np

from solver.device_ops import DeviceOps
from zbplan.errors import DeadlockError
from zbplan.instance import BW, B, F, Instance, IntArray, Orders, W
from zbplan.simulate import measure, simulate
from zbplan.tighten import tighten

BLOCKS = (1, 2, 3, 4, 5, 6, 8)
"""Microbatches of a block that are tried."""

CUTS = 7
"""Moments that are tried as the begin of a block."""


def shortened(instance: Instance, microbatches: int) -> Instance:
    """Return the instance with fewer of its equal microbatches."""
    part = np.s_[..., :microbatches]
    columns = {name: getattr(instance, name)[part] for name in ("duration", "hold", "release", "peak")}
    return replace(instance, **columns)


def applies(instance: Instance) -> bool:
    """Return whether microbatches are equal, and leave nothing to choose between BW and B with W."""
    ops = DeviceOps(instance)
    return ops.equal_microbatches and not ops.choice.any()


def in_sequence(instance: Instance, orders: Orders) -> Orders:
    """Return orders of equal microbatches, no worse and as legal, in which every stage runs them in sequence."""
    orders = DeviceOps(instance).without_dominated(orders)
    return _numbered(instance, [orders.on(device) // instance.microbatches for device in range(instance.devices)])


def _numbered(instance: Instance, passes: list[IntArray]) -> Orders:
    """Return orders whose kinds and stages are given, one integer each, as ops of microbatches in sequence."""
    numbered = []
    for types in passes:
        kind, stage = np.divmod(types, instance.stages)
        microbatch = np.zeros_like(types)
        for each in np.unique(stage):
            forward, backward = np.flatnonzero((stage == each) & (kind == F)), np.isin(kind, (B, BW)) & (stage == each)
            microbatch[forward] = np.arange(len(forward))
            microbatch[backward] = np.arange(backward.sum())
            microbatch[(stage == each) & (kind == W)] = microbatch[(stage == each) & (kind == B)]
        numbered.append(types * instance.microbatches + microbatch)
    return Orders.of(numbered)


def folded(instance: Instance, orders: Orders, few: Instance) -> Orders | None:
    """Return the orders of ``in_sequence`` with a block left out, so that few microbatches are left; None if not so."""
    start = simulate(instance, orders).start
    block = instance.microbatches - few.microbatches
    passes = []
    for device in range(instance.devices):
        stretch = _block(
            instance, orders, device, start, int(start.max()) * few.microbatches // (2 * instance.microbatches), block
        )
        if stretch is None:
            return None
        types = orders.on(device) // instance.microbatches
        passes.append(np.concatenate([types[: stretch.start], types[stretch.stop :]]))
    left = _numbered(few, passes)
    try:
        simulate(few, left)
    except DeadlockError:
        return None
    return left


def _block(instance: Instance, orders: Orders, device: int, start: IntArray, moment: int, block: int) -> slice | None:
    """Return where a device runs a block, the nearest behind a moment; None if it runs none."""
    part = slice(*orders.offsets[device : device + 2].tolist())
    types = orders.ops[part] // instance.microbatches
    length = block * len(types) // instance.microbatches
    at = int(np.searchsorted(start[part], moment))
    for first in range(at, min(len(types) - length, at + length) + 1):
        _, counts = np.unique(types[first : first + length], return_counts=True)
        if (counts == block).all() and len(counts) * block == length:
            return slice(first, first + length)
    return None


@dataclass(frozen=True, eq=False)
class Pattern:
    """Orders for few microbatches, with where each device stands at a moment.

    Attributes
    ----------
    few
        The instance of these orders.
    """

    few: Instance
    orders: Orders

    def unrolled(self, instance: Instance) -> Orders | None:
        """Return the best orders that repeat a block for all microbatches of an instance; None if there are none."""
        best, least = None, 0
        for orders in self._candidates(instance):
            try:
                objective = measure(instance, tighten(instance, orders)).iteration
            except DeadlockError:
                continue
            if best is None or objective < least:
                best, least = orders, objective
        return best

    def _candidates(self, instance: Instance) -> Iterator[Orders]:
        extra = instance.microbatches - self.few.microbatches
        start = simulate(self.few, self.orders).start
        middle, length = int(start.max()) // 2, int(start.max())
        moments = np.linspace(middle - length // 6, middle + length // 6, CUTS).astype(np.int64)
        for block, moment in product(BLOCKS, moments.tolist()):
            if extra % block == 0:
                passes = [self._repeated(device, start, moment, block, extra) for device in range(instance.devices)]
                if all(types is not None for types in passes):
                    yield _numbered(instance, [types for types in passes if types is not None])

    def _repeated(self, device: int, start: IntArray, moment: int, block: int, extra: int) -> IntArray | None:
        """Return kinds and stages on a device, the block nearest behind a moment repeated; None if there is none."""
        stretch = _block(self.few, self.orders, device, start, moment, block)
        if stretch is None:
            return None
        types = self.orders.on(device) // self.few.microbatches
        return np.concatenate([types[: stretch.start], np.tile(types[stretch], extra // block), types[stretch.start :]])
