"""Fitting: a cut that fits into memory, or the proof that there is none.

Devices are filled one after the other. What counts of those before is only how far each chunk's stages reach: one
position per chunk, for V the two ends of what is left, which move inward. So all cuts are covered by the positions that
can be reached, device by device, which are far fewer; interleaved chunks are tried from every beginning of their own.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from itertools import combinations

import numpy as np

from heuristic.partition.weights import Weights
from zbplan.instance import BoolArray, IntArray

MOST = 20_000_000
"""Devices' stages to look at, about, after which the search gives up."""

AT_ONCE = 1_000_000
"""Those of them that are looked at together."""


@dataclass(frozen=True, eq=False)
class Fitting:
    """Whether a cut fits into memory.

    Attributes
    ----------
    starts
        The first layer of each stage of one that does; None if none was found.
    exhausted
        Whether all cuts are covered: without ``starts`` there is none then.
    """

    starts: IntArray | None
    exhausted: bool


def fitting(weights: Weights, *, most: int = MOST) -> Fitting:
    """Search all cuts for one that fits into memory, up to an effort."""
    if _exceeds_all_room(weights):
        return Fitting(None, exhausted=True)
    left = most
    for begins, ends in _chunks(weights):
        filling = _Filling(weights, begins, ends, left)
        starts = filling.starts()
        if starts is not None:
            return Fitting(starts, exhausted=False)
        left = filling.left
        if left <= 0:
            return Fitting(None, exhausted=False)
    return Fitting(None, exhausted=True)


def _exceeds_all_room(weights: Weights) -> bool:
    """Return whether all devices together have no room for the layers, on one microbatch."""
    whole = np.array([0]), np.array([weights.layers])
    least = weights.stage_static(*whole) + weights.stage_held(*whole)
    return not weights.beside and bool(weights.beyond(least, weights.room.sum())[0] > 0)


def _chunks(weights: Weights) -> Iterator[tuple[IntArray, IntArray]]:
    """Yield where each chunk begins and ends; of two that meet in the middle, each ends where the other begins."""
    layers, devices, chunks = weights.layers, weights.devices, weights.chunks
    if _folded(weights):
        yield np.array([0, layers]), np.array([layers, 0])
        return
    even = np.linspace(0, layers, chunks + 1)[1:-1]
    inner = combinations(range(devices, layers - devices + 1), chunks - 1)
    apart = [np.array([0, *cuts, layers]) for cuts in inner]
    for bounds in sorted(apart, key=lambda bounds: float(np.abs(bounds[1:-1] - even).sum())):
        if (np.diff(bounds) >= devices).all():
            yield bounds[:-1], bounds[1:]


def _folded(weights: Weights) -> bool:
    """Return whether the second chunk comes back from the last device to the first."""
    return weights.chunks == 2 and weights.devices > 1 and bool(weights.stages_of[0, 1] > weights.stages_of[1, 1])


class _Filling:
    """The positions that chunks can reach on each device, from where they begin to where they end."""

    def __init__(self, weights: Weights, begins: IntArray, ends: IntArray, left: int) -> None:
        self._weights = weights
        self._ends = ends
        self._step: IntArray = np.where(ends > begins, 1, -1)
        self._folded = bool((self._step < 0).any())
        self._reached = [begins[None]]
        self._parents: list[IntArray] = []
        self._sizes = self._every_size()
        self.left = left

    def _every_size(self) -> IntArray:
        """Return the numbers of layers that a device's stages may have: int64[ways, chunks]."""
        spare = np.abs(self._ends - self._reached[0][0]) - self._weights.devices * (2 if self._folded else 1)
        grids = np.meshgrid(*(np.arange(each + 1) for each in spare), indexing="ij")
        more = np.stack([grid.ravel() for grid in grids], axis=1)
        return 1 + (more[more.sum(axis=1) <= spare[0]] if self._folded else more)

    def starts(self) -> IntArray | None:
        """Return a cut that fits; None if there is none, or nothing is ``left`` of the effort."""
        for device in range(self._weights.devices):
            reached, parents = self._behind(device)
            if not len(reached) or self.left <= 0:
                return None
            self._reached.append(reached)
            self._parents.append(parents)
        return self._traced()

    def _behind(self, device: int) -> tuple[IntArray, IntArray]:
        """Return the positions behind a device within memory, and from which ones before they are reached."""
        before, block = self._reached[-1], max(1, AT_ONCE // len(self._sizes))
        self.left -= len(before) * len(self._sizes)
        parts = range(0, len(before), block) if self.left > 0 else ()
        found = [self._fitting(device, before[at : at + block], at) for at in parts]
        if not found:
            return before[:0], np.zeros(0, dtype=np.int64)
        behind, parents = (np.concatenate(column) for column in zip(*found, strict=True))
        _, chosen = np.unique(behind @ (self._weights.layers + 1) ** np.arange(len(self._ends)), return_index=True)
        return behind[chosen], parents[chosen]

    def _fitting(self, device: int, before: IntArray, at: int) -> tuple[IntArray, IntArray]:
        """Return the same for some of the positions before, the first of which is the one ``at``."""
        behind = before[:, None] + self._step * self._sizes
        parent, way = np.nonzero(self._can_end(behind, self._weights.devices - 1 - device))
        before, behind = before[parent], behind[parent, way]
        first, last = np.sort([before, behind], axis=0)
        fits = self._weights.lacking(first, last, self._weights.room[device]) == 0
        return behind[fits], parent[fits] + at

    def _can_end(self, behind: IntArray, devices: int) -> BoolArray:
        """Return whether the layers that are left are enough for this many devices; for none, whether none is left."""
        left = behind[..., 1:] - behind[..., :1] if self._folded else self._ends - behind
        needed = 2 * devices if self._folded else devices
        enough: BoolArray = np.all(left >= needed if devices else left == 0, axis=-1)
        return enough

    def _traced(self) -> IntArray:
        """Return the cut that ends in the first of the positions behind the last device."""
        starts, at = np.zeros(self._weights.stages, dtype=np.int64), 0
        for device in reversed(range(self._weights.devices)):
            behind, at = self._reached[device + 1][at], int(self._parents[device][at])
            starts[self._weights.stages_of[device]] = np.minimum(behind, self._reached[device][at])
        return starts
