"""A bound from the wave of first microbatches on linear placement, found by bisection on a target.

Suppose that a schedule meets a target. Then each device's idle time before its first backward op is limited: the
target less work, and less what must be idle elsewhere (``windows``). Let stage i hold equal microbatches and let s_i
be the time from its first F to its first backward op. In that time only F run, n of them with 1 ≤ n ≤ K (what the
room holds at once), so s_i lies in [n·T_F, n·T_F + idle] for some n. The first backward op on stage i needs a
gradient from stage i + 1, whose first backward op is no earlier than s_{i+1} after its first F, which is at least T_F
+ lag after the first F on stage i. So s_i is at least

    T_F(i) + lag + s_{i+1} + backward(i + 1) + lag.

From the last stage up, take for s_i the least time that both allow: by induction no schedule that meets the target
has a smaller one. Where there is none, no schedule meets the target. A larger target only widens the intervals, so
bisection finds the least target that is not refuted.
"""

from __future__ import annotations

from collections.abc import Sequence
from functools import cached_property

from solver.least import Least
from solver.windows import Window
from zbplan.instance import UNLIMITED, F


class Wave:
    """The wave of one instance on linear placement with equal microbatches.

    Parameters
    ----------
    windows
        What each device must wait for.
    """

    def __init__(self, least: Least, windows: Sequence[Window]) -> None:
        self.least = least
        self.windows = windows

    @cached_property
    def _most(self) -> list[int]:
        instance = self.least.instance
        most = []
        for stage in range(instance.stages):
            room = int(instance.room[stage]) - int(instance.peak[stage, 0])
            held = int(instance.hold[F, stage, 0])
            fits = instance.microbatches if room >= UNLIMITED // 2 or not held else room // held
            most.append(max(1, min(instance.microbatches, fits)))
        return most

    @staticmethod
    def applies(least: Least) -> bool:
        """Return whether every device holds one stage of equal microbatches, in the sequence of the stages."""
        instance = least.instance
        in_sequence = instance.stages == instance.devices and (instance.device_of[1:] > instance.device_of[:-1]).all()
        return bool(in_sequence and least.equal.all())

    def counts(self, target: int) -> list[int] | None:
        """Return how many F each device runs before its first backward op, in the fastest wave that meets a target.

        None if no wave does.
        """
        instance, backward = self.least.instance, self.least.backward
        counts: list[int] = []
        begin = 0
        for stage in reversed(range(instance.stages)):
            ticks = int(instance.duration[F, stage, 0])
            arrival = begin + ticks
            if stage < instance.stages - 1:
                arrival += int(instance.forward_lag[stage] + backward[stage + 1, 0] + instance.backward_lag[stage])
            idle = self.windows[stage].idle_within(target, post_validated=instance.post_validated)
            reached = _reach(arrival, ticks, self._most[stage], idle)
            if reached is None:
                return None
            count, begin = reached
            counts.append(count)
        return counts[::-1]

    def bound(self, lowest: int) -> int:
        """Return the least target from ``lowest`` on that is not refuted."""
        step = 1
        while self.counts(lowest + step) is None:
            step *= 2
        return lowest if self.counts(lowest) is not None else self._bisect(lowest, lowest + step)

    def _bisect(self, refuted: int, open_target: int) -> int:
        while open_target - refuted > 1:
            middle = (refuted + open_target) // 2
            if self.counts(middle) is None:
                refuted = middle
            else:
                open_target = middle
        return open_target


def _reach(arrival: int, ticks: int, most: int, idle: int) -> tuple[int, int] | None:
    """Return the least time from ``arrival`` on that is some F and at most ``idle`` ticks, and the number of F."""
    if idle < 0:
        return None
    count = min(most, arrival // ticks) if ticks else most
    if arrival <= count * ticks + idle:
        return count, arrival
    return (count + 1, (count + 1) * ticks) if count < most else None
