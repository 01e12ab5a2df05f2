"""The even flow: how many microbatches each stage holds if they pass through all stages at an even pace.

A microbatch that never waits stays on a stage from the start of its F to the end of its backward op. If n of them are
between their first and their last op at any time, a stage holds the part of n that its stay is of the longest one, the
first stage's. The largest n that then fits into the memory of every device gives the caps of a list schedule, on any
placement and under any limit. Which gap is worth a W, and whether B goes before an F that is due, remains to be tried.
"""

from __future__ import annotations

from collections.abc import Iterator
from itertools import islice

import numpy as np

from heuristic.list_schedule import FloatArray, Policy, list_schedule, task_of
from heuristic.objective import least
from heuristic.wave import wave_policy
from zbplan.instance import BW, B, F, Instance, IntArray, Orders

TRIES = ((1.0, False), (0.05, True), (0.05, False), (1.0, True), (0.3, False), (0.3, True))
"""Part of T_W that a gap must have for W, and whether B always goes first: what suits scarce memory, then ample one."""

LEAST_TRIES, MOST_OPS = 2, 40_000
"""Schedules that are tried whatever they cost, and the ops of all together beyond that."""


def sketch(instance: Instance) -> Orders:
    """Return sensible orders under any feasible limit for the price of one list schedule."""
    return list_schedule(task_of(instance), next(_policies(instance)))


def even_flow(instance: Instance) -> Orders:
    """Return the best orders with the caps of the even flow that an effort of ``MOST_OPS`` finds."""
    tries = max(LEAST_TRIES, MOST_OPS // int(instance.duration[:3].size))
    return least(instance, islice(flows(instance), tries))


def flows(instance: Instance) -> Iterator[Orders]:
    """Yield all orders with the caps of the even flow that are worth a try."""
    task = task_of(instance)
    for policy in _policies(instance):
        yield list_schedule(task, policy)


def counts(instance: Instance) -> IntArray:
    """Return how many microbatches each stage holds at most in the largest flow that fits into memory."""
    share = _stays(instance) / _stays(instance)[0]
    low, high = 1, instance.microbatches
    while low < high:
        middle = (low + high + 1) // 2
        if _fits(instance, _counts(share, middle)):
            low = middle
        else:
            high = middle - 1
    return _counts(share, low)


def _policies(instance: Instance) -> Iterator[Policy]:
    caps, due = counts(instance), _due(instance)
    due_forward = due.copy()
    due_forward[B] = -1
    for gap, backward_first in TRIES:
        key = due_forward if backward_first else due
        yield wave_policy(instance, caps, caps)._replace(key=key, weight_gap=gap)


def _due(instance: Instance) -> IntArray:
    """Return when F (row 0) and the backward op (row 1) of each stage and microbatch start if none ever waits."""
    stay, forward = _stays(instance), instance.duration[F].mean(axis=1)
    entry = np.arange(instance.microbatches) * stay[0] / counts(instance)[0]
    arrival = np.concatenate([[0.0], np.cumsum(forward[:-1] + instance.forward_lag)])
    due: IntArray = (np.stack([arrival, arrival + stay])[:, :, None] + entry).astype(np.int64)
    return due


def _stays(instance: Instance) -> FloatArray:
    """Return the ticks from the start of F to the end of the backward op on each stage, of a mean microbatch."""
    mean = instance.duration.mean(axis=2)
    steps = mean[F] + np.where(instance.splittable, mean[B], mean[BW])
    steps[:-1] += instance.forward_lag + instance.backward_lag
    stays: FloatArray = np.maximum(1.0, np.cumsum(steps[::-1])[::-1])
    return stays


def _counts(share: FloatArray, count: int) -> IntArray:
    return np.maximum(1, np.ceil(count * share - 1e-9)).astype(np.int64)


def _fits(instance: Instance, held: IntArray) -> bool:
    needed = held * instance.hold[F].max(axis=1)
    return all(
        needed[list(stages)].sum() <= room for stages, room in zip(instance.stages_of, instance.room, strict=True)
    )
