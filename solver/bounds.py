"""Lower bounds on iteration_ms that cost little at any size.

Every bound holds over all legal schedules of an instance on its placement: any orders and any start times, and B with
W or BW on each splittable stage as the schedule likes.
"""

from __future__ import annotations

from collections.abc import Callable
from contextlib import suppress
from dataclasses import dataclass
from weakref import WeakKeyDictionary

import numpy as np

from solver.least import Least, StoppedError
from solver.residence import area_span, area_to_home, turn_span
from solver.wave import Wave
from solver.windows import Window, window_of
from zbplan.instance import F, Instance
from zbplan.stop import Stop, never


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


def forced_waits(least: Least) -> LowerBound:
    """Bound by the waits that memory forces before a device's first backward op and after its last F: ``windows``."""
    headed = not least.instance.post_validated
    windows = windows_of(least)
    own = [window.span + (window.head if headed else 0) for window in windows]
    whole = [window.whole for window in windows]
    device = int(np.argmax(np.maximum(own, whole)))
    reason = windows[device].reason(least.in_ms, whole=whole[device] > own[device], headed=headed)
    return LowerBound(max(own[device], whole[device]), f"device {device}: {reason}")


def first_wave(least: Least) -> LowerBound:
    """Bound by how long devices may idle before their first backward op, on linear placement: ``wave``."""
    if not Wave.applies(least):
        return LowerBound(0, "no linear placement of equal microbatches")
    bound = Wave(least, windows_of(least)).bound(forced_waits(least).ticks)
    return LowerBound(bound, "the first gradients cannot come back earlier without more idle time on some device")


def wave_counts(instance: Instance, target: int) -> list[int] | None:
    """Return how many F each device runs before its first backward op in the fastest wave that meets a target."""
    least = Least(instance)
    return Wave(least, windows_of(least)).counts(target) if Wave.applies(least) else None


def residence(least: Least) -> LowerBound:
    """Bound by how long microbatches must stay in a device's memory: ``residence``."""
    headed = not least.instance.post_validated
    bounds = [
        max(
            max(area_span(least, device, window), turn_span(least, device, window)) + (window.head if headed else 0),
            area_to_home(least, device, window),
        )
        for device, window in enumerate(windows_of(least))
    ]
    device = int(np.argmax(bounds))
    return LowerBound(bounds[device], f"memory on device {device}: what each microbatch holds, and for how long")


_WINDOWS: WeakKeyDictionary[Least, tuple[Window, ...]] = WeakKeyDictionary()
"""Of the least times that are in use: they take long, and several bounds need them."""


def windows_of(least: Least) -> tuple[Window, ...]:
    """Return what every device must wait for."""
    if least not in _WINDOWS:
        _WINDOWS[least] = tuple(window_of(least, device) for device in range(least.instance.devices))
    return _WINDOWS[least]


Rule = Callable[[Least], LowerBound]

RULES: tuple[Rule, ...] = (busiest_device, longest_chain, fill_and_drain, forced_waits, residence, first_wave)


def lower_bound(instance: Instance, stop: Stop = never) -> LowerBound:
    """Return the best of the bounds; each holds for the instance's objective.

    Parameters
    ----------
    stop
        Asked now and then whether to make do with the bounds that are there; a device's work always is.
    """
    least = Least(instance, stop)
    bounds = [busiest_device(least)]
    with suppress(StoppedError):
        for rule in RULES:
            least.go_on()
            bounds.append(rule(least))
    return max(bounds, key=lambda bound: bound.ticks)
