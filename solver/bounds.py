"""Lower bounds on iteration_ms that cost little at any size.

Every bound holds over all legal schedules of an instance on its placement: any orders, and B with W or BW on each
splittable stage as the schedule likes. Below, for a stage and a microbatch,

- ``work`` is the least time on its device: T_F + min(T_B + T_W, T_BW), or T_F + T_BW where only BW may run;
- ``backward`` is the least time from the start of its backward op until its gradient leaves: min(T_B, T_BW), or T_BW;
- ``closing`` is the least time from the start of its backward op until all of it is done: min(T_B + T_W, T_BW), or
  T_BW.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from functools import cached_property

import numpy as np

from zbplan.instance import BW, B, F, Instance, IntArray, W


@dataclass(frozen=True)
class LowerBound:
    """A proven lower bound.

    Attributes
    ----------
    ticks
        No legal schedule has a smaller objective.
    reason
        Why, as one sentence for people.
    """

    ticks: int
    reason: str


class Least:
    """The least times of an instance from which the bounds are made; rows are stages, columns microbatches."""

    def __init__(self, instance: Instance) -> None:
        self.instance = instance

    @cached_property
    def backward(self) -> IntArray:
        """Least ticks from the start of a backward op until its gradient leaves."""
        duration = self.instance.duration
        return self._where_splittable(np.minimum(duration[B], duration[BW]))

    @cached_property
    def closing(self) -> IntArray:
        """Least ticks from the start of a backward op until B and W, or BW, are done."""
        duration = self.instance.duration
        return self._where_splittable(np.minimum(duration[B] + duration[W], duration[BW]))

    def _where_splittable(self, times: IntArray) -> IntArray:
        chosen: IntArray = np.where(self.instance.splittable[:, None], times, self.instance.duration[BW])
        return chosen

    @cached_property
    def work(self) -> IntArray:
        """Least ticks that a microbatch occupies a stage."""
        total: IntArray = self.instance.duration[F] + self.closing
        return total

    @cached_property
    def head(self) -> IntArray:
        """Least ticks from the start of a microbatch's first F until F of a stage can start."""
        steps = self.instance.duration[F, :-1] + self.instance.forward_lag[:, None]
        return _accumulate(steps)

    @cached_property
    def tail(self) -> IntArray:
        """Least ticks from the end of a stage's backward op, its gradient gone, until stage 0 is done with it.

        Zero for stage 0 itself.
        """
        steps = self.backward[:-1] + self.instance.backward_lag[:, None]
        if len(steps):
            steps[0] += self.closing[0] - self.backward[0]
        return _accumulate(steps)

    @cached_property
    def descent(self) -> IntArray:
        """Least ticks from the end of a stage's F until its own backward op can start."""
        forward = self.instance.duration[F, 1:] + self.instance.forward_lag[:, None]
        backward = self.backward[1:] + self.instance.backward_lag[:, None]
        return _accumulate((forward + backward)[::-1])[::-1]

    def of_device(self, device: int) -> tuple[int, int]:
        """Return the first and the last stage of a device."""
        stages = self.instance.stages_of[device]
        return stages[0], stages[-1]

    def work_on(self, device: int) -> int:
        """Return the least ticks that a device works."""
        return int(self.work[list(self.instance.stages_of[device])].sum())

    def forward_and_backward_on(self, device: int) -> int:
        """Return the least ticks that a device works until its last gradient leaves."""
        stages = list(self.instance.stages_of[device])
        return int((self.instance.duration[F, stages] + self.backward[stages]).sum())

    def in_ms(self, ticks: int) -> str:
        """Return ticks as text for people."""
        return f"{self.instance.clock.value(int(ticks)):.6g} ms"


def _accumulate(steps: IntArray) -> IntArray:
    start = np.zeros((1, steps.shape[1]), dtype=np.int64)
    return np.concatenate([start, np.cumsum(steps, axis=0)])


def busiest_device(least: Least) -> LowerBound:
    """Bound by a device's work: it runs one op at a time, so neither its span nor the makespan is less."""
    work = [least.work_on(device) for device in range(least.instance.devices)]
    device = int(np.argmax(work))
    return LowerBound(work[device], f"device {device} has {least.in_ms(work[device])} of work")


def longest_chain(least: Least) -> LowerBound:
    """Bound by one microbatch's way forward and back, where each op needs the one before it.

    Its first and last op run on the device that holds stage 0, so the bound holds for that device's span too.
    """
    chain = least.instance.duration[F, 0] + least.descent[0] + least.closing[0]
    microbatch = int(np.argmax(chain))
    reason = f"microbatch {microbatch} alone takes {least.in_ms(chain[microbatch])} through all stages and back"
    return LowerBound(int(chain[microbatch]), reason)


def fill_and_drain(least: Least) -> LowerBound:
    """Bound by a device's first input, which must reach it, and its last gradient, which must travel back to stage 0.

    Let s be the device's first stage. The makespan counts from the start of some F on stage 0. The device's first op is
    F of some microbatch on s: it starts no earlier than the least ``head`` of s. All F, and the gradient part of all
    backward ops, of the device end before the last gradient leaves it; that gradient leaves from s, because every other
    stage of the device is later on its microbatch's way back. Then stage 0 still needs the least ``tail`` of s.
    The span of the device that holds stage 0 is the makespan's part from the first F on stage 0 to the last op there,
    and both ends of this argument lie on that device: the bound holds for both objectives.
    """
    bounds = []
    for device in range(least.instance.devices):
        stage, _ = least.of_device(device)
        head, tail = int(least.head[stage].min()), int(least.tail[stage].min())
        bounds.append(head + least.forward_and_backward_on(device) + tail)
    device = int(np.argmax(bounds))
    stage, _ = least.of_device(device)
    reason = (
        f"device {device} waits {least.in_ms(least.head[stage].min())} for its first input, works "
        f"{least.in_ms(least.forward_and_backward_on(device))} on F and B, and its last gradient needs "
        f"{least.in_ms(least.tail[stage].min())} to stage 0"
    )
    return LowerBound(bounds[device], reason)


def first_round_trip(least: Least) -> LowerBound:
    """Bound by the time until a device's first gradient: it can run F alone, and only as many as its memory holds.

    Let s and l be the first and last stage of a device. Its first op is F on s, at time t. Its first backward op is
    on l: a microbatch's backward op on another stage of the device comes later. So the first backward op starts no
    earlier than t plus the least time from the start of F on s to the gradient on l, and every op before it is an F
    whose memory is not yet given back. Their time is at most the greatest time of F whose memory fits the room. What
    is left of the wait is idle, and adds to the device's work. The makespan begins with the first F on stage 0, at
    least the least ``head`` of s before t.
    """
    parts = [_round_trip_of(least, device) for device in range(least.instance.devices)]
    device = int(np.argmax([head + idle + work for head, idle, work, _ in parts]))
    head, idle, work, trip = parts[device]
    reasons = [f"device {device} has {least.in_ms(work)} of work"]
    if head:
        reasons.append(f"its first input arrives after {least.in_ms(head)}")
    if idle:
        reasons.append(
            f"its first gradient comes back {least.in_ms(trip)} later, of which its memory lets it fill "
            f"{least.in_ms(trip - idle)} with F"
        )
    return LowerBound(head + idle + work, "; ".join(reasons))


def _round_trip_of(least: Least, device: int) -> tuple[int, int, int, int]:
    """Return a device's wait before its first op, its idle time before its first gradient, its work and that trip."""
    instance = least.instance
    first, last = least.of_device(device)
    head = 0 if instance.post_validated else int(least.head[first].min())
    trip = int((least.head[last] - least.head[first] + instance.duration[F, last] + least.descent[last]).min())
    return head, max(0, trip - most_forward_work(instance, device)), least.work_on(device), trip


def most_forward_work(instance: Instance, device: int) -> int:
    """Return a bound on the ticks of F whose memory a device can hold at once.

    It is the knapsack in which F may count in parts, taken in the sequence of ticks per memory unit.
    """
    stages = list(instance.stages_of[device])
    duration, hold = instance.duration[F, stages].ravel(), instance.hold[F, stages].ravel()
    free = hold == 0
    density = duration[~free] / hold[~free]
    densest = np.argsort(-density, kind="stable")
    ticks, units = duration[~free][densest], np.cumsum(hold[~free][densest])
    whole = int(np.searchsorted(units, instance.room[device], side="right"))
    most = int(duration[free].sum() + ticks[:whole].sum())
    if whole < len(ticks):
        left = int(instance.room[device]) - (int(units[whole - 1]) if whole else 0)
        most += -(-int(ticks[whole]) * left // int(hold[~free][densest][whole]))
        # Densities are floats: within their rounding the sequence may be wrong, at a cost of under 8 of 2^53 ticks.
        most += 8 if len(set(density.tolist())) > 1 else 0
    return most


Rule = Callable[[Least], LowerBound]

RULES: tuple[Rule, ...] = (busiest_device, longest_chain, fill_and_drain, first_round_trip)


def lower_bound(instance: Instance) -> LowerBound:
    """Return the best of the bounds; each holds for the instance's objective."""
    least = Least(instance)
    return max((rule(least) for rule in RULES), key=lambda bound: bound.ticks)
