"""The ladder: a plan is the best that is known for any of a series of limits up to the one given.

A search does not get better with every bit of memory: it takes another turn and may end a little worse. So the search
is made on the rungs of a ladder that does not depend on the limit, each time in the same way; then more memory only
adds rungs, and never gives a slower plan. A limit between two rungs counts as the lower one. That holds where devices
differ in room by the same, and up to ``MOST_OPS``: above, a search on the limit itself gives the better plans.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace

import numpy as np

from zbplan.instance import BW, B, F, Instance, IntArray, W

MOST_OPS = 6_000
"""Ops above which the ladder has one rung only, the limit itself: there a single schedule takes milliseconds."""

FEW = 16
"""Devices up to which whole numbers of microbatches are rungs, and stages up to which a few W put off make one, too."""


def rungs(instance: Instance) -> Iterator[Instance]:
    """Yield the instance with the memory of each rung, the highest rung first.

    Rungs are eighths and tenths of what p microbatches hold, and with few devices whole microbatches, up to twice that;
    with few stages also what makes room for another op. Then they become ever wider. If devices differ in room, then by
    as much on every rung.
    """
    room = np.minimum(instance.room, _everything(instance))
    lowest = room.min()
    shape = room - lowest
    if instance.duration[:3].size > MOST_OPS:
        yield instance
        return
    for level in _levels(instance, int((instance.smallest_room - shape).max())):
        if level <= lowest:
            yield replace(instance, room=level + shape)


def least_time(instance: Instance) -> int:
    """Return ticks that no orders undercut."""
    return max(_least_for_memory(instance), _least_with_ramps(instance))


def _least_for_memory(instance: Instance) -> int:
    """Return the memory that all ops hold, times how long, over the room there is."""
    shortest = _shortest_stay(instance).astype(np.float64)  # memory units times ticks may pass 64 bits
    split = instance.hold[F] * shortest[B] + instance.release[W] * shortest[W]
    fused = instance.hold[F] * shortest[BW]
    area = np.where(instance.splittable[:, None], np.minimum(split, fused), fused).sum(axis=1)
    needed = [float(area[list(stages)].sum()) for stages in instance.stages_of]
    return int((np.array(needed) / np.maximum(instance.room, 1) * (1 - 1e-9)).max())


def _least_with_ramps(instance: Instance) -> int:
    """Return the work of a device, and how long it idles at its ends, when memory lets it run nothing but F or no F."""
    duration, hold, stay = instance.duration, instance.hold[F], _shortest_stay(instance)
    apart = np.where(instance.splittable[:, None], duration[B] + duration[W], duration[BW])
    around = np.where(instance.splittable[:, None], np.minimum(stay[B] + duration[W], stay[BW]), stay[BW])
    least = 0
    for stages, room in zip(instance.stages_of, instance.room.tolist(), strict=True):
        held, first, last = list(stages), stages[0], stages[-1]
        way = _since(instance, first)[last]
        work = int((duration[F, held] + np.minimum(apart, duration[BW])[held]).sum())
        before = _most_within(room, duration[F, held], hold[held])
        begin = max(0, int((way + stay[BW, last] - duration[BW, last]).min() - before))
        longest = int(duration[F, held].max())
        after = _most_within(
            room,
            np.stack([np.maximum(apart, duration[BW])[held], duration[W, held]]),
            np.stack([hold[held], instance.release[W, held]]),
        )
        end = max(0, int((around[first] - way).min() - longest - after))
        ramps = begin + end if int(hold[held].sum()) > room else max(begin, end)
        head = 0 if instance.post_validated else int(_since(instance, 0)[first].min())
        least = max(least, head + work + ramps)
    return least


def _most_within(room: int, ticks: IntArray, held: IntArray) -> float:
    """Return how long ops can run in total if all of them are held at once."""
    ticks, held = ticks[ticks > 0], held[ticks > 0]
    longest = float(ticks.sum())
    return min(longest, room * float((ticks / held).max(initial=0.0)) * (1 + 1e-9)) if held.all() else longest


def _since(instance: Instance, first: int) -> IntArray:
    """Return the least ticks from the start of F on a stage to that on every later one, per microbatch."""
    passed = np.zeros_like(instance.peak)
    for stage in range(first, instance.stages - 1):
        passed[stage + 1] = passed[stage] + instance.duration[F, stage] + instance.forward_lag[stage]
    return passed


def _levels(instance: Instance, smallest: int) -> list[int]:
    """Return the levels from the smallest on, the highest first."""
    p, m, each = instance.devices, instance.microbatches, _each(instance)
    levels = {i * p * each // parts for parts in (8, 10) for i in range(1, 2 * parts + 1)}
    if p <= FEW:
        levels.update(count * each for count in range(1, 2 * p + 1))
        levels.update(_steps_of_ops(instance))
    level = 2 * p * each
    while level < m * each:
        levels.add(level)
        level = level * 3 // 2
    levels.add(m * each)
    unit = _unit(instance)
    levels = {level // unit * unit for level in levels if level <= m * each}
    return sorted({smallest, *(level for level in levels if level > smallest)}, reverse=True)


def _steps_of_ops(instance: Instance) -> set[int]:
    """Return levels at which a device has room for one more F, or for W to be put off.

    They go up to p microbatches, with many stages not as far, for there the first steps matter most.
    """
    chunks, few = max(map(len, instance.stages_of)), instance.stages <= FEW
    held, weights = _each(instance) // chunks, int(instance.release[W].max())
    counts = range(1, chunks * instance.devices if few else chunks * instance.devices * 5 // 8)
    put_off = range(3) if weights < held and few else range(1)
    return {count * held + pending * weights for count in counts for pending in put_off}


def _unit(instance: Instance) -> int:
    """Return what all memory is a multiple of, whatever the limit is counted in."""
    held = np.gcd.reduce(np.concatenate([instance.hold.ravel(), instance.release.ravel(), instance.peak.ravel()]))
    return max(1, int(held))


def _each(instance: Instance) -> int:
    """Return what a microbatch holds at most on all stages of a device."""
    held = (instance.hold[F] + instance.hold[B]).max(axis=1)
    return max(1, *(int(held[list(stages)].sum()) for stages in instance.stages_of))


def _everything(instance: Instance) -> int:
    """Return the room above which there is nothing left to hold."""
    return int(instance.smallest_room.max()) + instance.microbatches * _each(instance)


def _shortest_stay(instance: Instance) -> IntArray:
    """Return the least ticks from the start of F to the end of B or BW on each stage, in their rows; T_W in row W."""
    duration = instance.duration
    back = np.where(instance.splittable[:, None], np.minimum(duration[B], duration[BW]), duration[BW])
    stay = duration.copy()
    below = np.zeros(instance.microbatches, dtype=np.int64)
    for stage in range(instance.stages - 1, -1, -1):
        stay[[B, BW], stage] += duration[F, stage] + below
        if stage > 0:
            lags = instance.forward_lag[stage - 1] + instance.backward_lag[stage - 1]
            below = duration[F, stage] + below + back[stage] + lags
    return stay
