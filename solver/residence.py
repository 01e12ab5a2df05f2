"""Bounds from how long microbatches must stay in a device's memory, which matter where memory is scarce.

*Area.* On a stage a microbatch holds M_B for at least T_F + descent + T_B, and M_W for T_W (or M_B until the end of
BW). The sum of memory × time over all microbatches, and ``peak`` while ops run, fits under room × span. What is
missing under the limit adds to it (below, less the highest ``peak``):

- At x after the first op and before the first backward op, at most 1 + ⌊x / T_F⌋ F have started.
- At y before the last end, every microbatch that still holds memory has work left. All of it but the op that runs
  just then lies within y, so at most H + ρ·y is held: H the most that one microbatch holds, ρ the most memory per
  tick of work left.

The first ramp ends with the first backward op; of the second one counts what lies after that. The bound is the least
span that leaves enough, found by bisection: a longer span gains more room than it adds to the ramp.

*Area until the last gradient leaves.* The same sum bounds the time from a device's first op until its last gradient
leaves from its first stage, less what W may still hold then: every W that ends later holds its M_W at that moment, so
all of them together hold at most the room, and what they hold while they run is at most the longest T_W times that.
(``peak`` of W is left out.) At y before that moment, every microbatch whose backward op on a stage is to come needs the
least T_B of the device, so at most 1 + ⌊y / T_B⌋ are; beside what these hold, only the op that runs counts. Before the
first op lies the ``head`` and behind that gradient the ``tail``, both within the time of the device of stage 0.

*Turns.* Let a device hold one stage of equal microbatches, numbered in their sequence (``device_ops`` shows that this
is no restriction), of which K fit at once. F number i + K starts after backward op number i ends, a ``residence`` of
T_F + descent + backward after F number i started (the least descent where those of other stages make them differ: of
the microbatches whose backward op is among the first i + 1, one has F number i or later). If the room left beside K
microbatches is below M_W, then at that start either no W is pending, W number i having run since; or fewer than K are
held, backward op i + 1 having ended: it ends T_F, and T_B, after the earliest end of number i. Either way the least
of T_W and T_F adds to the turn. The last F starts ⌊(m − 1) / K⌋ turns after one of the first K, and the device still
has to wait for it to come back.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from solver.least import Least
from solver.windows import Window
from zbplan.instance import BW, UNLIMITED, B, F, IntArray, W


def area_span(least: Least, device: int, window: Window) -> int:
    """Return the least span of a device by memory × time."""
    room = int(least.instance.room[device])
    if room >= UNLIMITED or room <= 0:
        return 0
    least_area = _area(least, device, least.work) + _rising_deficit(least, device, window.trip)
    falling = _Falling.of(least, device)
    refuted, possible = window.trip - 1, max(window.trip, 2 * least_area // room + 1) + falling.ramp
    while possible - refuted > 1:
        span = (refuted + possible) // 2
        if room * span < least_area + falling.deficit(span - window.trip):
            refuted = span
        else:
            possible = span
    return possible


def area_to_home(least: Least, device: int, window: Window) -> int:
    """Return the least ticks from the first F on stage 0 to the last op there, by memory × time on a device."""
    instance, stages = least.instance, list(least.instance.stages_of[device])
    room = int(instance.room[device])
    if room >= UNLIMITED or room <= 0:
        return 0
    until_gradient = instance.duration[F] + least.backward
    late = room * int((instance.duration[W, stages] * instance.splittable[stages][:, None]).max())
    area = _area(least, device, until_gradient) - late + _rising_deficit(least, device, window.trip)
    ramp, deficit = _leaving_deficit(least, device)
    ticks = -(-area // room)
    if ticks - window.trip >= ramp:
        ticks = -(-(area + deficit) // room)
    return window.head + max(0, ticks) + int(least.tail[stages[0]].min())


def _leaving_deficit(least: Least, device: int) -> tuple[int, int]:
    """Return for how long memory must fall before a device's last gradient leaves, and what stays empty meanwhile."""
    instance, stages = least.instance, list(least.instance.stages_of[device])
    split = instance.splittable[stages][:, None]
    most, shortest = int(instance.hold[F, stages].max()), int(least.backward[stages].min())
    running = max(
        int((instance.hold[B, stages] * split).max()) + int(instance.peak[stages].max()),
        int((instance.release[W, stages] * split).max()),
    )
    left = int(instance.room[device]) - running
    if not shortest or not most or left <= most:
        return 0, 0
    steps = left // most
    return steps * shortest, shortest * (steps * left - most * steps * (steps + 1) // 2)


def _area(least: Least, device: int, busy: IntArray) -> int:
    return sum(_area_of_stage(least, stage, busy) for stage in least.instance.stages_of[device])


def _area_of_stage(least: Least, stage: int, busy: IntArray) -> int:
    """Return memory × time of a stage, ``peak`` for as long as it is busy; in Python integers, which have no limit."""
    instance = least.instance
    times = 1 if least.equal[stage] and (least.descent[stage] == least.descent[stage, 0]).all() else None
    part = np.s_[stage, :times]
    duration, hold, release = (
        column[:, stage, :times] for column in (instance.duration, instance.hold, instance.release)
    )
    rows = [
        *(duration[F] + least.descent[part], duration[B], duration[W], duration[BW]),
        *(hold[F], hold[B], release[W], instance.peak[part], busy[part]),
    ]
    area = 0
    for before, t_b, t_w, t_bw, m_b, more, m_w, peak, running in zip(*(row.tolist() for row in rows), strict=True):
        together = m_b * (before + t_bw)
        apart = m_b * (before + t_b) + more * t_b + m_w * t_w
        area += (min(apart, together) if instance.splittable[stage] else together) + peak * running
    return area * (instance.microbatches if times else 1)


def _rising_deficit(least: Least, device: int, trip: int) -> int:
    """Return room × ticks that must stay empty before the first backward op."""
    instance = least.instance
    stages = list(instance.stages_of[device])
    most, shortest = int(instance.hold[F, stages].max()), int(instance.duration[F, stages].min())
    room = int(instance.room[device]) - int(instance.peak[stages].max())
    if not shortest or not most:
        return 0
    deficit, started = 0, 1
    while (started - 1) * shortest < trip and started * most < room:
        ticks = min(shortest, trip - (started - 1) * shortest)
        deficit += ticks * (room - started * most)
        started += 1
    return deficit


@dataclass(frozen=True)
class _Falling:
    """How memory must fall before a device's last end: ``left`` below the limit then, by ``units`` per ``ticks``."""

    left: int
    units: int
    ticks: int

    @classmethod
    def of(cls, least: Least, device: int) -> _Falling:
        instance = least.instance
        stages = list(instance.stages_of[device])
        held = instance.hold[F, stages] + instance.hold[B, stages]
        pending = held - instance.release[B, stages]
        split = np.broadcast_to(instance.splittable[stages][:, None], held.shape)
        left = int(instance.room[device]) - int(instance.peak[stages].max()) - int(held.max())
        steepest = cls(left, 0, 1)
        items = [
            (held, least.closing[stages], held > 0),
            (pending, instance.duration[W, stages], split & (pending > 0)),
        ]
        for memory, work, counts in items:
            for units, ticks in set(zip(memory[counts].tolist(), work[counts].tolist(), strict=True)):
                if units * steepest.ticks > steepest.units * ticks:
                    steepest = cls(left, units, ticks)
        return steepest

    @property
    def ramp(self) -> int:
        """Ticks for which the limit cannot be reached."""
        return self.left * self.ticks // self.units if self.left > 0 and self.units else 0

    def deficit(self, ticks: int) -> int:
        """Return the memory × time that stays empty in the last ticks."""
        ticks = min(ticks, self.ramp)
        return self.left * ticks - -(-self.units * ticks * ticks // (2 * self.ticks)) if ticks > 0 else 0


def turn_span(least: Least, device: int, window: Window) -> int:
    """Return the least span of a device by turns of as many microbatches as it can hold."""
    instance = least.instance
    stage, *others = instance.stages_of[device]
    if others or not least.equal[stage] or instance.room[device] == UNLIMITED:
        return 0
    held = int(instance.hold[F, stage, 0])
    room = int(instance.room[device]) - int(instance.peak[stage, 0])
    most = room // held if held else instance.microbatches
    if not 1 <= most < instance.microbatches:
        return 0
    turns, rest = divmod(instance.microbatches - 1, most)
    return (
        rest * int(instance.duration[F, stage, 0]) + turns * _turn(least, stage, room - most * held) + window.own_drain
    )


def _turn(least: Least, stage: int, spare: int) -> int:
    instance = least.instance
    forward, backward, weight, whole = map(int, instance.duration[:, stage, 0])
    residence = forward + int(least.descent[stage].min())
    if not instance.splittable[stage]:
        return residence + whole
    apart = residence + backward
    if instance.release[W, stage, 0] > spare:
        apart += min(forward, weight)
    return min(apart, residence + whole)
