"""Tighten: the times that make the longest device span as short as an order allows.

Under post-validation a device counts from its own first op, so one that starts too early and then waits pays for it.
``simulate`` starts every op as early as possible; here each device's first op is put off where that shortens the
longest span. The orders stay as they are, and so does the memory that they take.

Let D(d, e) be the least time from the first start on device d to the last end on device e: the longest path between
them. Spans of at most λ ask for first(e) ≥ first(d) + D(d, e) − λ for all d and e. That can be met if and only if no
cycle of devices has a mean D above λ: the best λ is the maximum cycle mean of D, rounded up to a tick, and the earliest
first starts are longest paths again.
"""

from __future__ import annotations

import numpy as np

from zbplan.instance import Instance, IntArray, Orders
from zbplan.simulate import LONG_AGO, Schedule, simulate

MOST_STEPS = 50_000_000
"""Ops times devices up to which times are tightened; above that ops start as early as possible."""


def tighten(instance: Instance, orders: Orders) -> Schedule:
    """Return times of orders with the least objective; those of ``simulate`` where nothing is to be gained.

    Raises
    ------
    DeadlockError
        If devices wait for each other for ever.
    """
    schedule = simulate(instance, orders)
    if not instance.post_validated or len(orders.ops) * instance.devices > MOST_STEPS:
        return schedule
    first, last = _first_starts(schedule), _last_ends(schedule)
    longest = int((last - first).argmax())
    if _reached(instance, orders, longest)[longest] == last[longest] - first[longest]:
        return schedule
    distance = np.stack([_reached(instance, orders, device) for device in range(instance.devices)])
    if int(distance.max()) * instance.devices > -LONG_AGO // 2:
        return schedule
    return simulate(instance, orders, release=_put_off(first, distance, _maximum_cycle_mean(distance)))


def _first_starts(schedule: Schedule) -> IntArray:
    return schedule.start[schedule.orders.offsets[:-1]]


def _last_ends(schedule: Schedule) -> IntArray:
    return schedule.end[schedule.orders.offsets[1:] - 1]


def _reached(instance: Instance, orders: Orders, device: int) -> IntArray:
    """Return the longest path from the first start on a device to the last end on each; very negative for none."""
    release = np.full(instance.devices, LONG_AGO, dtype=np.int64)
    release[device] = 0
    return _last_ends(simulate(instance, orders, release=release))


def _maximum_cycle_mean(distance: IntArray) -> int:
    """Return the largest mean distance of any cycle, rounded up (Karp, 1978)."""
    count = len(distance)
    walks = np.full((count + 1, count), 0, dtype=np.int64)
    for length in range(count):
        walks[length + 1] = np.maximum((walks[length][:, None] + distance).max(axis=0), LONG_AGO)
    lengths = np.arange(count, 0, -1)[:, None]
    means = -((walks[:-1] - walks[-1]) // lengths)
    return int(np.where(walks[:-1] > LONG_AGO // 2, means, -LONG_AGO).min(axis=0).max())


def _put_off(first: IntArray, distance: IntArray, span: int) -> IntArray:
    """Return the earliest first starts with which no device takes longer than a span."""
    while True:
        later = np.maximum(first, (first[:, None] + distance - span).max(axis=0))
        if (later == first).all():
            return first
        first = later
