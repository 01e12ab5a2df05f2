"""Instance: a problem as integer arrays, which is what simulator, heuristics, bounds and solvers compute on."""

from __future__ import annotations

from dataclasses import dataclass
from functools import cached_property

import numpy as np
import numpy.typing as npt

from zbplan.scale import Scale

IntArray = npt.NDArray[np.int64]
BoolArray = npt.NDArray[np.bool_]

KINDS = ("F", "B", "W", "BW")
F, B, W, BW = range(len(KINDS))

UNLIMITED = 1 << 62
"""``room`` of a device without memory limit."""


def op_name(kind: str, stage: int, microbatch: int) -> str:
    """Return an op as text for people, such as ``B(stage 3, microbatch 7)``."""
    return f"{kind}(stage {stage}, microbatch {microbatch})"


@dataclass(frozen=True, eq=False)
class Instance:
    """A scheduling instance in integer ticks and integer memory units.

    An op is one integer, ``(kind * stages + stage) * microbatches + microbatch``, so that it indexes the raveled
    arrays below; ``code`` and ``split`` convert.

    Attributes
    ----------
    device_of : int64[stages]
        The device that holds each stage.
    duration : int64[4, stages, microbatches]
        Ticks of each op, by kind F, B, W, BW.
    forward_lag, backward_lag : int64[stages - 1]
        Ticks between the end of F on stage s and the start of F on s + 1, and between the end of B (or BW) on s + 1
        and the start of B (or BW) on s: T_comm, or 0 where both stages share a device.
    hold, release : int64[4, stages, microbatches]
        Memory units taken when an op starts and given back when it ends.
    peak : int64[stages, microbatches]
        Memory units used inside any op of the stage, above the live level.
    static : int64[devices]
        Memory units of weights, gradients and optimizer state.
    room : int64[devices]
        Memory units that activations may take: limit less static memory; ``UNLIMITED`` without limit.
    splittable : bool[stages]
        False where only BW may run.
    post_validated : bool
        The objective: True minimises the longest device span, False the makespan.
    clock, memory : Scale
        Conversion between ticks and milliseconds, memory units and bytes.
    """

    device_of: IntArray
    duration: IntArray
    forward_lag: IntArray
    backward_lag: IntArray
    hold: IntArray
    release: IntArray
    peak: IntArray
    static: IntArray
    room: IntArray
    splittable: BoolArray
    post_validated: bool
    clock: Scale
    memory: Scale

    @property
    def devices(self) -> int:
        """Number of devices p."""
        return len(self.room)

    @property
    def stages(self) -> int:
        """Number of stages S."""
        return int(self.duration.shape[1])

    @property
    def microbatches(self) -> int:
        """Number of microbatches m."""
        return int(self.duration.shape[2])

    @cached_property
    def stages_of(self) -> tuple[tuple[int, ...], ...]:
        """Per device its stages in forward order."""
        return tuple(tuple(np.flatnonzero(self.device_of == device).tolist()) for device in range(self.devices))

    @cached_property
    def smallest_room(self) -> IntArray:
        """Per device, the least ``room`` under which a plan exists.

        One microbatch at a time with BW is legal under this room on every device at once, and no order needs less:
        when BW (or B) of stage s runs, the microbatch is still held by s and by every earlier stage of its device.
        """
        smallest = np.zeros(self.devices, dtype=np.int64)
        for device, stages in enumerate(self.stages_of):
            live = np.cumsum(self.hold[F, list(stages)], axis=0)
            smallest[device] = (live + self.peak[list(stages)]).max()
        return smallest

    def code(self, kind: int, stage: int, microbatch: int) -> int:
        """Return the integer that stands for an op."""
        return (kind * self.stages + stage) * self.microbatches + microbatch

    def split(self, op: int) -> tuple[int, int, int]:
        """Return kind, stage and microbatch of an op."""
        rest, microbatch = divmod(int(op), self.microbatches)
        kind, stage = divmod(rest, self.stages)
        return kind, stage, microbatch

    def name(self, op: int) -> str:
        """Return an op as text for people."""
        kind, stage, microbatch = self.split(op)
        return op_name(KINDS[kind], stage, microbatch)


@dataclass(frozen=True, eq=False)
class Orders:
    """What each device runs, in sequence.

    Attributes
    ----------
    ops : int64[n]
        The ops of device 0, then of device 1, and so on.
    offsets : int64[devices + 1]
        Device d owns ``ops[offsets[d]:offsets[d + 1]]``.
    """

    ops: IntArray
    offsets: IntArray

    @classmethod
    def of(cls, per_device: list[list[int]] | list[IntArray]) -> Orders:
        """Join one sequence of ops per device."""
        offsets = np.zeros(len(per_device) + 1, dtype=np.int64)
        np.cumsum([len(ops) for ops in per_device], out=offsets[1:])
        ops = np.concatenate([np.asarray(ops, dtype=np.int64) for ops in per_device])
        return cls(ops=ops, offsets=offsets)

    def on(self, device: int) -> IntArray:
        """Return the ops of one device, in order."""
        return self.ops[self.offsets[device] : self.offsets[device + 1]]
