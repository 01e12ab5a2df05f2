"""What exact models share: the ops of each device, and which precedences hold in some best schedule.

BW is left out where it is dominated: with T_BW ≥ T_B + T_W and M_W ≤ M_B it can be replaced by B and, right after it,
W. The device is busy no longer, the gradient leaves no later, B takes no memory at its start, and during W it holds
M_B − M_W less than BW did (``peak`` is the same for all ops of a stage), so the schedule stays legal and gets no
worse.

Where all microbatches of every stage are equal, some best schedule runs them on every stage in their own sequence, F,
backward ops and W each: take any schedule and give the n-th F of a stage to microbatch n, likewise the n-th backward
op and the n-th W. A consumer starts after its producer for each microbatch, hence also the n-th consumer after the
n-th producer; memory depends only on how many ops of a kind have run.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from functools import cached_property

from zbplan.instance import BW, B, BoolArray, F, Instance, Orders, W

Op = tuple[int, int, int]
"""Kind F, B (also stands for BW) or W, stage and microbatch."""


@dataclass(frozen=True, eq=False)
class Numbered:
    """Orders as an exact model sees them.

    Attributes
    ----------
    position
        Where each op stands on its device; W of a BW stands right behind its B.
    fused
        Stage and microbatch of every BW.
    """

    position: dict[Op, int]
    fused: set[tuple[int, int]]


@dataclass(frozen=True, eq=False)
class DeviceOps:
    """The ops of an instance as an exact model sees them."""

    instance: Instance

    @cached_property
    def equal_microbatches(self) -> bool:
        """Whether every stage treats all its microbatches alike."""
        instance = self.instance
        columns = [instance.duration, instance.hold, instance.release, instance.peak[None]]
        return all(bool((column == column[:, :, :1]).all()) for column in columns)

    @cached_property
    def choice(self) -> BoolArray:
        """Where a model must choose between BW and B with W; bool[stages, microbatches]."""
        duration, hold = self.instance.duration, self.instance.hold
        dominated = (duration[BW] >= duration[B] + duration[W]) & (hold[B] == 0)
        free: BoolArray = self.instance.splittable[:, None] & ~dominated
        return free

    def has_weight(self, stage: int) -> bool:
        """Return whether W of a stage is an op of its own, at least by choice."""
        return bool(self.instance.splittable[stage])

    def on(self, device: int) -> list[Op]:
        """Return the ops that a device may run."""
        return [
            (kind, stage, microbatch)
            for stage in self.instance.stages_of[device]
            for kind in ((F, B, W) if self.has_weight(stage) else (F, B))
            for microbatch in range(self.instance.microbatches)
        ]

    def must_precede(self, first: Op, second: Op) -> bool:
        """Return whether dependencies alone, and the sequence of equal microbatches, put one op before another."""
        (kind, stage, microbatch), (other_kind, other_stage, other) = first, second
        if microbatch != other and not (self.equal_microbatches and microbatch < other):
            return False
        if (kind, stage) == (other_kind, other_stage):
            return microbatch != other and (kind != W or not self.choice[stage].any())
        if kind == W:
            return False
        depth, other_depth = self.depth_of(kind, stage), self.depth_of(min(other_kind, B), other_stage)
        return depth < other_depth or (depth == other_depth and other_kind == W)

    def depth(self, op: Op) -> int:
        """Return how far down a microbatch's way an op stands; W right behind its B."""
        kind, stage, _ = op
        return 2 * self.depth_of(min(kind, B), stage) + (kind == W)

    def depth_of(self, kind: int, stage: int) -> int:
        """Return how far down a microbatch's way F or B of a stage stands."""
        return stage if kind == F else 2 * self.instance.stages - 1 - stage

    def pairs(self, device: int) -> Iterator[tuple[Op, Op]]:
        """Yield the pairs of a device's ops whose sequence is open."""
        ops = self.on(device)
        for at, first in enumerate(ops):
            for second in ops[at + 1 :]:
                if not self.must_precede(first, second) and not self.must_precede(second, first):
                    yield first, second

    def without_dominated(self, orders: Orders) -> Orders:
        """Return orders, no worse and as legal, with B and W in place of every dominated BW."""
        instance = self.instance
        per_device: list[list[int]] = []
        for device in range(instance.devices):
            ops: list[int] = []
            for op in orders.on(device).tolist():
                kind, stage, microbatch = instance.split(op)
                if kind == BW and self.has_weight(stage) and not self.choice[stage, microbatch]:
                    ops += [instance.code(B, stage, microbatch), instance.code(W, stage, microbatch)]
                else:
                    ops.append(op)
            per_device.append(ops)
        return Orders.of(per_device)

    def numbered(self, orders: Orders) -> Numbered:
        """Return orders as positions per op, numbered in the sequence that ``must_precede`` asks for."""
        position: dict[Op, int] = {}
        fused: set[tuple[int, int]] = set()
        for device in range(self.instance.devices):
            for stage in self.instance.stages_of[device]:
                rows = self._rows(orders.on(device).tolist(), stage)
                for number, (at, microbatch, _) in enumerate(rows[F]):
                    position[F, stage, self._name(number, microbatch)] = at
                weights = {microbatch: at for at, microbatch, _ in rows[W]}
                in_turn = iter(at for at, _, _ in rows[W])
                for number, (at, microbatch, is_fused) in enumerate(rows[B]):
                    name = self._name(number, microbatch)
                    position[B, stage, name] = at
                    if is_fused:
                        fused.add((stage, name))
                        position[W, stage, name] = at + 1
                    else:
                        position[W, stage, name] = next(in_turn) if self.equal_microbatches else weights[microbatch]
        return Numbered(position, fused)

    def _name(self, number: int, microbatch: int) -> int:
        return number if self.equal_microbatches else microbatch

    def _rows(self, ops: list[int], stage: int) -> dict[int, list[tuple[int, int, bool]]]:
        rows: dict[int, list[tuple[int, int, bool]]] = {F: [], B: [], W: []}
        for at, op in enumerate(ops):
            kind, where, microbatch = self.instance.split(op)
            if where == stage:
                rows[B if kind == BW else kind].append((2 * at, microbatch, kind == BW))
        return rows
