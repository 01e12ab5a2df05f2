"""The exact optimum of a tiny instance by brute force: the oracle of every bound and of every plan.

It enumerates all semi-active schedules, op by op in the sequence of their starts, with B and W or BW wherever a stage
is splittable, any sequence of microbatches, and memory. It shares no code with the bounds that it judges; a branch is
cut only when the work that is left on a device cannot end before the best schedule so far.
"""

from __future__ import annotations

import numpy as np

from zbplan.instance import BW, UNLIMITED, B, F, Instance, IntArray, W
from zbplan.jit import kernel


def optimum(instance: Instance) -> int | None:
    """Return the least objective of any legal orders in ticks; None if no orders fit into memory."""
    cells = instance.stages * instance.microbatches
    duration = instance.duration.reshape(4, cells)
    best = np.array([UNLIMITED], dtype=np.int64)
    apart = np.where(np.repeat(instance.splittable, instance.microbatches), duration[B] + duration[W], UNLIMITED)
    left = np.zeros(instance.devices, dtype=np.int64)
    np.add.at(left, np.repeat(instance.device_of, instance.microbatches), duration[F] + np.minimum(apart, duration[BW]))
    _explore(
        np.zeros(cells, dtype=np.int64),
        np.zeros((2, cells), dtype=np.int64),
        np.stack([np.zeros_like(left), np.full_like(left, -1), np.zeros_like(left), left]),
        np.int64(0),
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
        instance.post_validated,
    )
    return None if best[0] == UNLIMITED else int(best[0])


@kernel
def _explore(
    progress: IntArray,
    ends: IntArray,
    device_state: IntArray,
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
    splittable: IntArray,
    post_validated: bool,
) -> None:
    """Try every op that can come next; rows of ``device_state`` are clock, first start, live memory and work left."""
    clock, first, live, left = device_state
    stages = len(device_of)
    done = True
    for cell in range(len(progress)):
        if progress[cell] == 3:
            continue
        done = False
        stage = cell // microbatches
        device = device_of[stage]
        for kind in range(4):
            before = progress[cell]
            if before != (0, 1, 2, 1)[kind] or (kind == B and not splittable[stage]):
                continue
            ready = 0
            if kind == F and stage > 0:
                if progress[cell - microbatches] == 0:
                    continue
                ready = ends[0, cell - microbatches] + forward_lag[stage - 1]
            elif kind in (B, BW):
                ready = ends[0, cell]
                if stage < stages - 1:
                    if progress[cell + microbatches] < 2:
                        continue
                    ready = max(ready, ends[1, cell + microbatches] + backward_lag[stage])
            start = max(clock[device], ready)
            if start < last_start or live[device] + hold[kind, cell] + peak[cell] > room[device]:
                continue
            saved = device_state[:, device].copy()
            end = start + duration[kind, cell]
            clock[device] = end
            if first[device] < 0:
                first[device] = start
            live[device] += hold[kind, cell] - release[kind, cell]
            left[device] -= _shortest(kind, cell, duration, splittable[stage])
            progress[cell] = (1, 2, 3, 3)[kind]
            if kind == F:
                ends[0, cell] = end
            elif kind != W:
                ends[1, cell] = end
            if _floor(clock, first, left, post_validated) < best[0]:
                _explore(
                    progress,
                    ends,
                    device_state,
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
                    post_validated,
                )
            progress[cell] = before
            device_state[:, device] = saved
    if done:
        best[0] = min(best[0], _floor(clock, first, left, post_validated))


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
def _floor(clock: IntArray, first: IntArray, left: IntArray, post_validated: bool) -> int:
    """Return what the objective comes to at least; exactly, once nothing is left."""
    lowest = np.int64(0)
    for device in range(len(clock)):
        begin = max(first[device], 0) if post_validated else 0
        if first[device] >= 0 or not post_validated:
            lowest = max(lowest, clock[device] + left[device] - begin)
    return lowest
