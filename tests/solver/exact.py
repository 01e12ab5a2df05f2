"""The exact optimum of a tiny instance by brute force: the oracle of every bound and of every plan.

It enumerates all orders, op by op in the sequence of their earliest starts, with B and W or BW wherever a stage is
splittable, any sequence of microbatches, and memory. It shares no code with the bounds that it judges; a branch is cut
only when the work that is left on the devices cannot end before the best schedule so far.

Under post-validation first ops may be put off. Time is then kept once per device: as it is when that device starts at 0
and nothing else is ever late. The least longest span of the orders is the largest mean, over cycles of devices, of the
time from the first start on one device to the last end on the next.
"""

from __future__ import annotations

import numpy as np

from zbplan.instance import BW, UNLIMITED, B, BoolArray, F, Instance, IntArray, W
from zbplan.jit import kernel

LONG_AGO = -(1 << 60)


def optimum(instance: Instance) -> int | None:
    """Return the least objective of any legal schedule in ticks; None if no orders fit into memory."""
    cells, devices = instance.stages * instance.microbatches, instance.devices
    duration = instance.duration.reshape(4, cells)
    splittable = np.repeat(instance.splittable, instance.microbatches)
    apart = np.where(splittable, duration[B] + duration[W], UNLIMITED)
    left = np.zeros(devices, dtype=np.int64)
    np.add.at(left, np.repeat(instance.device_of, instance.microbatches), duration[F] + np.minimum(apart, duration[BW]))
    worlds = np.concatenate([np.zeros((1, devices), dtype=np.int64), np.full((devices, devices), LONG_AGO)])
    np.fill_diagonal(worlds[1:], 0)
    best = np.array([UNLIMITED], dtype=np.int64)
    _explore(
        np.zeros(cells, dtype=np.int64),
        np.full((devices + 1, 2, cells), LONG_AGO),
        worlds if instance.post_validated else worlds[:1],
        np.stack([np.zeros_like(left), left]),
        0,
        best,
        instance.microbatches,
        duration,
        instance.hold.reshape(4, cells),
        instance.release.reshape(4, cells),
        instance.peak.ravel(),
        instance.room,
        instance.device_of,
        instance.forward_lag,
        instance.backward_lag,
        instance.splittable,
    )
    return None if best[0] == UNLIMITED else int(best[0])


@kernel
def _explore(
    progress: IntArray,
    ends: IntArray,
    clocks: IntArray,
    load: IntArray,
    last_start: int,
    best: IntArray,
    microbatches: int,
    duration: IntArray,
    hold: IntArray,
    release: IntArray,
    peak: IntArray,
    room: IntArray,
    device_of: IntArray,
    forward_lag: IntArray,
    backward_lag: IntArray,
    splittable: BoolArray,
) -> None:
    """Try every op that can come next.

    Rows of ``clocks`` are worlds: the first is the schedule in which all starts early, then one per device; rows of
    ``load`` are live memory and work left per device.
    """
    live, left = load
    done = True
    for cell in range(len(progress)):
        before = progress[cell]
        if before == 3:
            continue
        done = False
        stage = cell // microbatches
        device = device_of[stage]
        for kind in range(4):
            if before != (0, 1, 2, 1)[kind] or (kind == B and not splittable[stage]):
                continue
            if kind == F and stage > 0 and progress[cell - microbatches] == 0:
                continue
            if kind in (B, BW) and stage < len(device_of) - 1 and progress[cell + microbatches] < 2:
                continue
            ready = _ready(kind, cell, stage, ends, microbatches, forward_lag, backward_lag)
            start = max(clocks[0, device], ready[0])
            if start < last_start or live[device] + hold[kind, cell] + peak[cell] > room[device]:
                continue
            saved_clock, saved_load = clocks[:, device].copy(), load[:, device].copy()
            for world in range(len(clocks)):
                clocks[world, device] = max(clocks[world, device], ready[world]) + duration[kind, cell]
                if kind != W:
                    ends[world, min(kind, 1), cell] = clocks[world, device]
            live[device] += hold[kind, cell] - release[kind, cell]
            left[device] -= _shortest(kind, cell, duration, splittable[stage])
            progress[cell] = (1, 2, 3, 3)[kind]
            if _floor(clocks, left) < best[0]:
                _explore(
                    progress,
                    ends,
                    clocks,
                    load,
                    start,
                    best,
                    microbatches,
                    duration,
                    hold,
                    release,
                    peak,
                    room,
                    device_of,
                    forward_lag,
                    backward_lag,
                    splittable,
                )
            progress[cell] = before
            clocks[:, device], load[:, device] = saved_clock, saved_load
    if done:
        best[0] = min(best[0], _floor(clocks, left))


@kernel
def _ready(
    kind: int,
    cell: int,
    stage: int,
    ends: IntArray,
    microbatches: int,
    forward_lag: IntArray,
    backward_lag: IntArray,
) -> IntArray:
    """Return when the inputs of an op are there, per world."""
    ready = np.full(len(ends), LONG_AGO)
    for world in range(len(ends)):
        if kind == F and stage > 0:
            ready[world] = ends[world, 0, cell - microbatches] + forward_lag[stage - 1]
        elif kind == W:
            ready[world] = ends[world, 1, cell]
        elif kind != F:
            ready[world] = ends[world, 0, cell]
            if stage < len(backward_lag):
                ready[world] = max(ready[world], ends[world, 1, cell + microbatches] + backward_lag[stage])
    return ready


@kernel
def _shortest(kind: int, cell: int, duration: IntArray, splittable: bool) -> int:
    """Return the part of the device's least work that an op does away with."""
    closing = duration[BW, cell]
    if splittable:
        closing = min(closing, duration[B, cell] + duration[W, cell])
    if kind == F:
        return duration[F, cell]
    if kind == BW:
        return closing
    # After B its W is still to come; the least closing may be shorter than both.
    return closing - duration[W, cell] if kind == B else duration[W, cell]


@kernel
def _floor(clocks: IntArray, left: IntArray) -> int:
    """Return what the objective comes to at least; exactly, once nothing is left."""
    lowest = np.int64(0)
    if len(clocks) == 1:
        for device in range(len(left)):
            lowest = max(lowest, clocks[0, device] + left[device])
        return lowest
    for a in range(len(left)):
        lowest = max(lowest, clocks[1 + a, a] + left[a])
        for b in range(len(left)):
            there = clocks[1 + a, b] + left[b]
            lowest = max(lowest, -(-(there + clocks[1 + b, a] + left[a]) // 2))
            for c in range(len(left)):
                round_trip = there + clocks[1 + b, c] + left[c] + clocks[1 + c, a] + left[a]
                lowest = max(lowest, -(-round_trip // 3))
    return lowest
