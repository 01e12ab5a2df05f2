"""The wave of first microbatches: how many F each device runs before its first B if nobody waits for long.

On linear placement only F can run on a device before its first B. From the last device up, each runs as many F as come
closest to what it takes until its first gradient can arrive; then it idles, or the gradient waits for the last F. The
wave with the least idle time on any device gives the caps of a list schedule (section 2.2 of the paper, ZB-H2, for
times of any kind). Which gap is worth a W remains to be tried.
"""

from __future__ import annotations

from collections.abc import Iterator
from itertools import islice, product

import numpy as np

from heuristic.list_schedule import NEVER, Policy, list_schedule, task_of
from heuristic.objective import least
from zbplan.instance import BW, B, F, Instance, IntArray, Orders

GAPS = (0.05, 1.2, 0.3, 0.1, 1.0, 0.7, 0.2, 0.5, 0.9, 0.15, 0.0)
"""Parts of T_W that a gap must have for W, the most often best first."""

PATIENCES = (0.0, 0.4)
"""Parts of T_F for which a device waits for something better."""

LEAST_TRIES, MOST_OPS = 4, 40_000
"""Schedules that are tried whatever they cost, and the ops of all together beyond that."""


def flows_down(instance: Instance) -> bool:
    """Return whether every device holds one stage, in the sequence of the stages."""
    return instance.stages == instance.devices and bool((instance.device_of[1:] > instance.device_of[:-1]).all())


def first_wave(instance: Instance) -> Orders:
    """Return the best orders with the caps of the wave; the placement must be as ``flows_down`` says."""
    task = task_of(instance)
    tries = max(LEAST_TRIES, MOST_OPS // int(instance.duration[:3].size))
    return least(instance, (list_schedule(task, policy) for policy in islice(_policies(instance), tries)))


def counts(instance: Instance) -> IntArray:
    """Return how many F each device runs before its first B, in the wave with the least idle time.

    Microbatches count with their mean times.
    """
    low, high = 0, int(instance.duration.sum() + instance.forward_lag.sum() + instance.backward_lag.sum())
    while low < high:
        middle = (low + high) // 2
        if _counts(instance, middle) is None:
            low = middle + 1
        else:
            high = middle
    return np.array(_counts(instance, low))


def wave_policy(instance: Instance, before: IntArray, after: IntArray) -> Policy:
    """Return the policy that keeps to caps before and after the first B, F first; W goes into gaps of its own length.

    Parameters
    ----------
    before, after : int64[stages]
        Microbatches between F and B on each stage.
    """
    forward_first = np.zeros((2, instance.stages, instance.microbatches), dtype=np.int64)
    forward_first[B] = 1
    return Policy(
        launch=np.arange(instance.microbatches),
        key=forward_first,
        slack=NEVER,
        patience=0,
        caps=np.stack([before, after], axis=1),
        weight_gap=1.0,
        backlog=np.full(instance.devices, instance.stages * instance.microbatches),
        split=np.ones(instance.stages, dtype=np.bool_),
    )


def _policies(instance: Instance) -> Iterator[Policy]:
    caps = counts(instance)
    policy = wave_policy(instance, caps, caps)
    for patience, gap in product(PATIENCES, GAPS):
        ticks = int(patience * float(instance.duration[F].mean()))
        yield policy._replace(weight_gap=gap, patience=ticks)


def _counts(instance: Instance, idle: int) -> list[int] | None:
    """Return the counts of the fastest wave in which no device idles longer; None if there is none."""
    forward = instance.duration[F].sum(axis=1) // instance.microbatches
    back = np.where(instance.splittable, instance.duration[B].sum(axis=1), instance.duration[BW].sum(axis=1))
    back = back // instance.microbatches
    begin, found = 0, []
    for stage in reversed(range(instance.stages)):
        ticks, most = int(forward[stage]), _most(instance, stage)
        arrival = begin + ticks
        if stage < instance.stages - 1:
            arrival += int(instance.forward_lag[stage] + back[stage + 1] + instance.backward_lag[stage])
        count = min(most, arrival // ticks) if ticks else most
        if arrival > count * ticks + idle:
            if count == most:
                return None
            count += 1
        begin = max(arrival, count * ticks)
        found.append(count)
    return found[::-1]


def _most(instance: Instance, stage: int) -> int:
    """Return how many microbatches a stage can hold."""
    held = int(instance.hold[F, stage].max())
    room = int(instance.room[instance.device_of[stage]]) - int(instance.peak[stage].max())
    return max(1, min(instance.microbatches, room // held)) if held else instance.microbatches
