"""Bounds from the idle time that memory forces on a device before its first backward op and after its last F.

Let d be a device, s and l its first and last stage, and ``work`` the least time that its ops take. For each op,
``what is left`` at a moment means: the least work less what has certainly been done, that is

- ``closing`` for a microbatch whose F has run on a stage and whose backward op has not,
- closing − T_B, at most, where B has run and W has not,
- nothing where BW or W has run.

*Before the first backward op.* It is on stage l, of some microbatch whose first F on d came before it: it starts no
earlier than ``trip`` after the device's first op. Until then only F run, and what they take is still held. So the
idle time before it is at least α = trip − (the most work of F that the room holds at once).

*After the last F.* Call its start t; it is on stage l, as each microbatch's F on l is its last. The room holds what
is live at t, so R, the most that can be left at t, is a knapsack. Hence at least work − R lies before t, and after t
the last F still goes down to the last stage and back: C ticks until the device is done with it, C0 until stage 0 is.

*Both.* If some backward op starts before t, then α also lies before t, so t is at least α + work − R after the
device's first op, and span ≥ α + work − R + max(R, C). If none does, every F of the device is held at once: only
possible where the room allows it; then α and the idle time after t are bounded apart.

*From device to whole.* The first op of d is at least ``head`` after some F on stage 0, and C0 ends with an op there:
the span of the device of stage 0, and the makespan, are at least head + α + work − R + C0. The same holds with u, the
start of the device's last backward op, in place of t: it is on stage s, only W can be pending beside it, and from it
the gradient still travels to stage 0.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

from solver.knapsack import forwards_held, left_beside
from solver.least import Least
from zbplan.instance import UNLIMITED, F


@dataclass(frozen=True)
class Window:
    """What one device must wait for, in ticks.

    Attributes
    ----------
    head
        From the first F on stage 0 to the device's first op.
    trip
        From the device's first op to its first backward op.
    filled
        The part of ``trip`` in which memory lets it run F.
    work
        Its least work.
    left_at_forward, left_at_backward
        R: the most work that can be left at the start of its last F, of its last backward op.
    own_drain, drain, backward_drain
        C and C0: from the start of the last F until the device, until stage 0 is done; from the start of the last
        backward op until stage 0 is done.
    held_at_once
        Whether the room can hold every F of the device at once.
    """

    head: int
    trip: int
    filled: int
    work: int
    left_at_forward: int
    left_at_backward: int
    own_drain: int
    drain: int
    backward_drain: int
    held_at_once: bool

    @property
    def idle(self) -> int:
        """α: idle ticks before the first backward op."""
        return max(0, self.trip - self.filled)

    @property
    def own_tail(self) -> int:
        """Idle ticks after the last F that the device's own span must contain."""
        return max(0, self.own_drain - self.left_at_forward)

    @property
    def span(self) -> int:
        """Least span of the device."""
        if self.held_at_once:
            return self.work + max(self.idle, self.own_tail)
        return self.work + self.idle + self.own_tail

    @property
    def whole(self) -> int:
        """Least ticks from the first F on stage 0 to the last op there."""
        by_forward = self.work - self.left_at_forward + self.drain
        by_backward = self.idle + self.work - self.left_at_backward + self.backward_drain
        return self.head + max(by_forward + (0 if self.held_at_once else self.idle), by_backward)

    def reason(self, in_ms: Callable[[int], str], *, whole: bool, headed: bool) -> str:
        """Return why, for people: of the device's own time, or of the ``whole`` until stage 0 is done."""
        parts = [f"it has {in_ms(self.work)} of work"]
        if self.head and (whole or headed):
            parts.insert(0, f"its first input arrives after {in_ms(self.head)}")
        if self.idle:
            filled = f"of which its memory lets it fill {in_ms(self.filled)} with F"
            parts.append(f"its first gradient comes back after {in_ms(self.trip)}, {filled}")
        if whole:
            parts.append(f"its last microbatch needs {in_ms(self.drain)} until stage 0 is done with it")
        elif self.own_tail:
            filled = f"where its memory leaves it at most {in_ms(self.left_at_forward)} of work"
            parts.append(f"its last microbatch takes {in_ms(self.own_drain)} to come back, {filled}")
        return "; ".join(parts)

    def idle_within(self, target: int, *, post_validated: bool) -> int:
        """Return how long it may idle before its first backward op in a schedule that meets a target."""
        own_tail = 0 if self.held_at_once else self.own_tail
        idle = target - self.work - own_tail - (0 if post_validated else self.head)
        idle = min(idle, target - self.head - (self.work - self.left_at_backward + self.backward_drain))
        if not self.held_at_once:
            idle = min(idle, target - self.head - (self.work - self.left_at_forward + self.drain))
        return idle


def window_of(least: Least, device: int) -> Window:
    """Return what a device must wait for."""
    least.go_on()
    instance = least.instance
    stages = list(instance.stages_of[device])
    first, last = stages[0], stages[-1]
    forward, hold, peak = instance.duration[F, last], instance.hold[F], instance.peak
    homeward = least.homeward
    on_device = least.climb[last] - least.climb[first] + least.closing[first]
    trip = least.head[last] - least.head[first] + forward + least.descent[last]
    every_forward = int(hold[stages].sum())
    at_forward = left_beside(
        least, device, live=True, held=int((hold[stages].sum(axis=0) + peak[last]).min()), own=frozenset(stages)
    )
    at_backward = left_beside(
        least, device, live=False, held=int((hold[first] + peak[first]).min()), own=frozenset({first})
    )
    own = forward + least.closing[stages].sum(axis=0)
    return Window(
        head=int(least.head[first].min()),
        trip=int(trip.min()),
        filled=forwards_held(least, device),
        work=least.work_on(device),
        left_at_forward=min(least.work_on(device), int(own.max()) + at_forward),
        left_at_backward=int(least.closing[first].max()) + at_backward,
        own_drain=int((forward + least.descent[last] + on_device).min()),
        drain=int((forward + least.descent[last] + homeward[last]).min()),
        backward_drain=int(homeward[first].min()),
        held_at_once=instance.room[device] == UNLIMITED or every_forward <= instance.room[device],
    )
