"""Weights: what the devices work and need for any cut of the layers, from running sums, for many cuts at once.

Quick, and good enough to steer by: whether a cut fits into memory, and how long its plan takes, the scheduler says.
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from decimal import Decimal
from typing import TypeVar

import numpy as np
import numpy.typing as npt

from zbplan.instance import IntArray
from zbplan.layers import Layers, even_starts
from zbplan.placement import Placement
from zbplan.problem import Problem
from zbplan.scale import MEMORY_HORIZON, Scale, decimal, memory_scale

FloatArray = npt.NDArray[np.float64]
Array = TypeVar("Array", FloatArray, IntArray)

TICKS_PER_MS = 1e6
EXACT = 1 << 53
"""Below this, sums of whole floats are exact."""

ROUNDING = 1e-9
"""Part of what is needed by which sums of larger floats may seem to exceed a room."""

TIMES = ("t_f_ms", "t_b_ms", "t_w_ms", "t_bw_ms")
BYTES = ("m_b_bytes", "m_static_bytes", "boundary_bytes")


@dataclass(frozen=True, eq=False)
class Weights:
    """The layers of a problem as running sums, on one of its placements.

    A stage is the layers from ``first`` to before ``last``; arrays of both may have any one shape.

    Attributes
    ----------
    stages_of : int64[devices, chunks]
        The stages of each device, in forward order.
    sums : dict of float64[layers + 1]
        Running sums over the layers: whole ticks and memory units by field, and ``unsplit``, how many cannot split.
    peaks : float64[levels, layers]
        Row k holds, for each layer, the most units that ops of the 2^k layers from there use inside.
    room : float64[devices]
        Units that a device may hold: beside its static memory and what ops use inside if ``beside``, else with both.
    rounding
        Part of what is needed by which it may seem to exceed a room.
    """

    stages_of: IntArray
    sums: dict[str, FloatArray]
    peaks: FloatArray
    room: FloatArray
    beside: bool
    rounding: float

    @classmethod
    def of(cls, problem: Problem, placement: Placement) -> Weights:
        """Return the weights of a problem with open layers."""
        layers = problem.open_layers
        assert layers is not None  # noqa: S101 - who asks for a cut has layers
        fused = problem.profile.engine_mode == "fused"
        columns = {name: np.rint(np.array(layers.per_layer(name)) * TICKS_PER_MS) for name in TIMES}
        scale, total = _memory_of(layers)
        columns |= {name: scale.many(layers.per_layer(name)).astype(np.float64) for name in BYTES}
        columns["unsplit"] = np.array([float(fused or not splits) for splits in layers.splits()])
        weights = cls(
            stages_of=np.array(placement, dtype=np.int64),
            sums={name: np.concatenate([[0.0], np.cumsum(column)]) for name, column in columns.items()},
            peaks=_peaks(scale.many(layers.per_layer("m_peak_bytes")).astype(np.float64)),
            room=np.full(problem.devices, np.inf),
            beside=isinstance(problem.memory_limit, str),
            rounding=0.0 if total < EXACT else ROUNDING,
        )
        return weights._within(problem, placement, scale)

    def _within(self, problem: Problem, placement: Placement, scale: Scale) -> Weights:
        """Return the same weights with the room that the problem's limits give: the even cut says what "kx" means."""
        starts = even_starts(self.layers, self.stages)
        limits = problem.cut(starts, placement).limits(placement)
        if limits is None:
            return self
        room = np.array([min(scale.floor(limit), MEMORY_HORIZON) for limit in limits], dtype=np.float64)
        static, peak = self._own(*map(self._by_device, self.stages_from(np.array([starts]))))
        return replace(self, room=room - (static + peak)[0] if self.beside else room)

    @property
    def layers(self) -> int:
        """Number of layers."""
        return int(self.peaks.shape[1])

    @property
    def devices(self) -> int:
        """Number of devices."""
        return int(self.stages_of.shape[0])

    @property
    def chunks(self) -> int:
        """Stages per device."""
        return int(self.stages_of.shape[1])

    @property
    def stages(self) -> int:
        """Number of stages."""
        return self.stages_of.size

    def work(self, starts: IntArray) -> FloatArray:
        """Return the ticks that each device works on a microbatch, at least, per cut: float64[cuts, devices]."""
        found: FloatArray = self._by_device(self.stage_work(*self.stages_from(starts))).sum(axis=2)
        return found

    def missing(self, starts: IntArray) -> FloatArray:
        """Return the units that each device lacks for one microbatch at a time, per cut: float64[cuts, devices]."""
        first, last = map(self._by_device, self.stages_from(starts))
        return self.lacking(first, last, self.room)

    def lacking(self, first: IntArray, last: IntArray, room: FloatArray | float) -> FloatArray:
        """Return the units that devices of some room lack for one microbatch at a time.

        The last axis of ``first`` and ``last`` runs over the stages of a device, in forward order.
        """
        static, peak = self._own(first, last)
        held = np.cumsum(self.stage_held(first, last), axis=-1)
        needed = (held + self.stage_peak(first, last)).max(axis=-1)
        return self.beyond(needed - peak if self.beside else needed + static, room)

    def beyond(self, needed: FloatArray, room: FloatArray | float) -> FloatArray:
        """Return by how much units exceed a room."""
        return np.where(needed - room > self.rounding * needed, needed - room, 0.0)

    def stages_from(self, starts: IntArray) -> tuple[IntArray, IntArray]:
        """Return the first layer of each stage, and the one behind its last, per cut."""
        return starts, np.concatenate([starts[:, 1:], np.full((len(starts), 1), self.layers)], axis=1)

    def stage_work(self, first: IntArray, last: IntArray) -> FloatArray:
        """Return the ticks of F and the quicker backward of stages, on one microbatch."""
        fused = self._sum("t_bw_ms", first, last)
        apart = self._sum("t_b_ms", first, last) + self._sum("t_w_ms", first, last)
        splits = self._sum("unsplit", first, last) == 0
        return self._sum("t_f_ms", first, last) + np.where(splits, np.minimum(apart, fused), fused)

    def stage_held(self, first: IntArray, last: IntArray) -> FloatArray:
        """Return the units that stages hold of a microbatch from F to B; tensors between two layers count once."""
        inner = self._sum("boundary_bytes", first, last - 1)
        return np.maximum(self._sum("m_b_bytes", first, last) - inner, 0.0)

    def stage_peak(self, first: IntArray, last: IntArray) -> FloatArray:
        """Return the most that ops of stages use inside: that of two runs of 2^k layers, which overlap."""
        level = np.frexp(last - first)[1] - 1
        found: FloatArray = np.maximum(self.peaks[level, first], self.peaks[level, last - (1 << level)])
        return found

    def stage_static(self, first: IntArray, last: IntArray) -> FloatArray:
        """Return the static memory of stages."""
        return self._sum("m_static_bytes", first, last)

    def _own(self, first: IntArray, last: IntArray) -> tuple[FloatArray, FloatArray]:
        """Return static memory, and what ops use inside, of devices whose stages the last axis runs over."""
        return self.stage_static(first, last).sum(axis=-1), self.stage_peak(first, last).max(axis=-1)

    def _by_device(self, per_stage: Array) -> Array:
        found: Array = per_stage[:, self.stages_of]
        return found

    def _sum(self, name: str, first: IntArray, last: IntArray) -> FloatArray:
        found: FloatArray = self.sums[name][last] - self.sums[name][first]
        return found


def _memory_of(layers: Layers) -> tuple[Scale, Decimal]:
    """Return the scale on which all bytes of the layers are whole units, as far as int64 allows, and their sum."""
    values = [decimal(value) for name in (*BYTES, "m_peak_bytes") for value in layers.per_layer(name)]
    total = sum(values, Decimal(0))
    scale = memory_scale(map(float, values), total)
    return scale, total.scaleb(-scale.exponent)


def _peaks(column: FloatArray) -> FloatArray:
    levels = [column]
    while 2 ** len(levels) <= len(column):
        half = 2 ** (len(levels) - 1)
        levels.append(np.maximum(levels[-1], np.concatenate([levels[-1][half:], np.zeros(half)])))
    return np.stack(levels)
