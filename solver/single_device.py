"""A bound from one device alone: all that is not its own becomes a wait, and what is left is solved by relaxed search.

A microbatch visits a device in fixed steps: F on each of its stages in forward order, then backward ops in reverse,
with at least a known ``lag`` elsewhere between two steps, and W of a stage at any time after its backward op. Let the
microbatches of every stage be equal, so that they pass every step in sequence, and BW be dominated (``device_ops``).
Then what a device can still do depends on how many microbatches have passed each step, on how many W have run, on the
time, and on when those under way elsewhere come back. A schedule is a path through such states, one op at a time; an
op starts as soon as the device is free and its microbatch is back, for waiting longer helps no one.

Microbatches do not come back closer together than the slowest op elsewhere lets them pass, F or backward.

What a schedule of the device means for the whole: counted from the device's first op, which is at least ``head``
after some F on stage 0, the device's own end, and ``tail`` after its last step, when stage 0 is done with that
microbatch. The same schedule has to meet both.

States with the same counts are kept apart up to a ``width`` and then merged, which takes the earliest of all their
times: that adds paths and removes none, so the least end over all paths stays a lower bound, exact where nothing was
merged (a relaxed decision diagram). States whose time and work left exceed a known plan are dropped.
"""

from __future__ import annotations

import math
from collections.abc import Iterator
from dataclasses import dataclass
from itertools import pairwise

import numpy as np

from solver.device_ops import DeviceOps
from solver.least import Least
from zbplan.instance import UNLIMITED, B, BoolArray, F, IntArray, W
from zbplan.stop import Stop, never


@dataclass(frozen=True, eq=False)
class Steps:
    """What a microbatch does on one device: its steps in sequence, then W; those W that are alike count as one kind.

    Attributes
    ----------
    duration, hold, keep : int64[steps + kinds of W]
        Ticks, memory taken at the start, and how much more is live at the end than before.
    lag, spacing : int64[steps - 1]
        Least ticks from the end of a step to the start of the next, and between two microbatches coming back.
    after : int64[kinds of W, steps]
        How many W of each kind a step lets run.
    head, tail
        Least ticks from the first F on stage 0 to the first step, and from the last step until stage 0 is done.
    """

    duration: IntArray
    hold: IntArray
    keep: IntArray
    lag: IntArray
    spacing: IntArray
    after: IntArray
    room: int
    microbatches: int
    head: int
    tail: int

    @property
    def count(self) -> int:
        """Number of steps, W not among them."""
        return len(self.lag) + 1

    @property
    def times(self) -> IntArray:
        """How often each op runs in all."""
        return self.microbatches * np.append(np.ones(self.count, dtype=np.int64), self.after.sum(axis=1))

    @property
    def radix(self) -> IntArray:
        """What each count is multiplied by to tell all counts by one number."""
        radix: IntArray = np.append(1, np.cumprod(self.times + 1)[:-1])
        return radix

    @property
    def waits(self) -> IntArray:
        """The steps after which a microbatch is elsewhere for some time."""
        return np.flatnonzero((self.lag > 0) | (self.spacing > 0))

    @property
    def queue(self) -> int:
        """The most microbatches that memory lets wait after one of those steps."""
        held = np.cumsum(self.keep[: self.count] + self.keep[self.count :] @ self.after)[self.waits]
        most = [self.room // each if each > 0 else self.microbatches for each in held.tolist()]
        return min(self.microbatches, max(most, default=0))


def steps_of(least: Least, device: int) -> Steps:
    """Return the steps of a device; microbatches must be equal and BW dominated."""
    instance = least.instance
    stages = list(instance.stages_of[device])
    back = stages[::-1]
    hold, release = instance.hold[:, :, 0], instance.release[:, :, 0]
    taken = np.where(instance.splittable, hold[B], 0)
    kept = np.where(instance.splittable, hold[B] - release[B], -hold[F])
    lags = np.array(list(_lags(least, stages)), dtype=np.int64)
    weights = {
        stage: (int(instance.duration[W, stage, 0]), int(release[W, stage]))
        for stage in back
        if instance.splittable[stage]
    }
    kinds = list(dict.fromkeys(weights.values()))
    steps = [*[None] * len(stages), *(weights.get(stage) for stage in back)]
    return Steps(
        duration=np.concatenate(
            [instance.duration[F, stages, 0], least.backward[back, 0], [duration for duration, _ in kinds]]
        ).astype(np.int64),
        hold=np.concatenate([hold[F, stages], taken[back], np.zeros(len(kinds), dtype=np.int64)]),
        keep=np.concatenate([hold[F, stages], kept[back], [-given for _, given in kinds]]).astype(np.int64),
        lag=lags[:, 0],
        spacing=lags[:, 1],
        after=np.array([[step == kind for step in steps] for kind in kinds], dtype=np.int64).reshape(-1, len(steps)),
        room=int(instance.room[device]) - int(instance.peak[stages].min()),
        microbatches=instance.microbatches,
        head=int(least.head[stages[0], 0]),
        tail=int(least.tail[stages[0], 0]),
    )


def _lags(least: Least, stages: list[int]) -> Iterator[tuple[int, int]]:
    """Yield lag and spacing after each step but the last."""
    forward, backward = least.instance.duration[F, :, 0], least.backward[:, 0]
    head, climb = least.head[:, 0], least.climb[:, 0]
    for here, there in pairwise(stages):
        yield int(head[there] - head[here] - forward[here]), int(forward[here + 1 : there].max(initial=0))
    below = slice(stages[-1] + 1, None)
    slowest = np.maximum(forward, backward)[below].max(initial=0)
    yield int(least.descent[stages[-1], 0]), int(slowest)
    for there, here in reversed(list(pairwise(stages))):
        yield int(climb[here] - climb[there] - backward[here]), int(backward[there + 1 : here].max(initial=0))


@dataclass(frozen=True, eq=False)
class _States:
    """Rows of states with equally many ops done.

    Attributes
    ----------
    done : int64[n, steps + weights]
        Microbatches that have passed each step, and W that have run.
    time : int64[n]
        When the device is free.
    back : int64[n, waits, queue]
        When the microbatches under way between two steps are back, soonest first; ``time`` where there is none.
    home : int64[n]
        When stage 0 is done, once the last step has run for the last microbatch; 0 before.
    """

    done: IntArray
    time: IntArray
    back: IntArray
    home: IntArray

    def pick(self, rows: IntArray | BoolArray) -> _States:
        return _States(*(column[rows] for column in self.columns))

    @property
    def columns(self) -> tuple[IntArray, IntArray, IntArray, IntArray]:
        return self.done, self.time, self.back, self.home


class SingleDevice:
    """The search over the states of one device.

    Parameters
    ----------
    post_validated
        Which objective.
    target
        Ticks of a known plan: longer schedules are of no interest.
    width
        States with the same counts that are kept apart.
    stop
        Asked now and then whether to give up.
    """

    def __init__(self, steps: Steps, *, post_validated: bool, target: int, width: int, stop: Stop) -> None:
        self.steps = steps
        self.post_validated = post_validated
        self.target = target
        self.width = width
        self.stop = stop

    @staticmethod
    def applies(least: Least) -> bool:
        """Return whether microbatches are equal and BW is dominated, so that counts tell what is left."""
        ops = DeviceOps(least.instance)
        return ops.equal_microbatches and not ops.choice.any()

    def bound(self) -> int:
        """Return ticks below which the objective cannot be, the target at most; 0 if stopped."""
        steps = self.steps
        states = _States(
            np.zeros((1, len(steps.duration)), dtype=np.int64),
            np.zeros(1, dtype=np.int64),
            np.zeros((1, len(steps.waits), steps.queue), dtype=np.int64),
            np.zeros(1, dtype=np.int64),
        )
        for _ in range(int(steps.times.sum())):
            if self.stop():
                return 0
            states = self._merge(self._promising(self._expand(states)))
            if not len(states.time):
                return self.target
        return min(self.target, int(self._objective(states.time, states.home).min()))

    def _expand(self, states: _States) -> _States:
        live = states.done @ self.steps.keep
        parts = [
            self._after(states.pick(self._may_run(states, live, op)), op) for op in range(len(self.steps.duration))
        ]
        return _States(
            *(np.concatenate(columns) for columns in zip(*(states.columns for states in parts), strict=True))
        )

    def _may_run(self, states: _States, live: IntArray, op: int) -> BoolArray:
        steps = self.steps
        if op == 0:
            available: IntArray | int = steps.microbatches
        elif op < steps.count:
            available = states.done[:, op - 1]
        else:
            available = states.done[:, : steps.count] @ steps.after[op - steps.count]
        fits: BoolArray = (states.done[:, op] < available) & (live + steps.hold[op] <= steps.room)
        return fits

    def _after(self, states: _States, op: int) -> _States:
        steps = self.steps
        done, back, start = states.done.copy(), states.back.copy(), states.time
        waits = {step: at for at, step in enumerate(steps.waits.tolist())}
        if op - 1 in waits and op < steps.count:
            at = waits[op - 1]
            start = np.maximum(start, back[:, at, 0])
            back[:, at, :-1] = back[:, at, 1:]
        time = start + steps.duration[op]
        if op in waits:
            at, waiting = waits[op], done[:, op] - done[:, op + 1]
            rows = np.arange(len(time))
            ahead = np.where(waiting > 0, back[rows, at, waiting - 1] + steps.spacing[op], 0)
            back[rows, at, waiting] = np.maximum(time + steps.lag[op], ahead)
        done[:, op] += 1
        last = op == steps.count - 1
        home = np.where(last & (done[:, op] == steps.microbatches), time + steps.tail, states.home)
        return _States(done, time, np.maximum(back, time[:, None, None]), home)

    def _promising(self, states: _States) -> _States:
        """Drop states that cannot meet the target: too much work left, or one under way comes too late."""
        steps = self.steps
        left = (steps.times - states.done) * steps.duration
        last_step = states.time + left[:, : steps.count].sum(axis=1)
        rest = np.append(np.cumsum((steps.duration[1 : steps.count] + np.append(steps.lag[1:], 0))[::-1])[::-1], 0)
        rows = np.arange(len(last_step))
        for at, step in enumerate(steps.waits.tolist()):
            waiting = states.done[:, step] - states.done[:, step + 1]
            back = states.back[rows, at, np.maximum(waiting, 1) - 1]
            last_step = np.maximum(last_step, np.where(waiting > 0, back + rest[step], 0))
        to_enter = steps.microbatches - states.done[:, 0]
        entered = states.time + to_enter * steps.duration[0] + steps.lag[0] + rest[0]
        last_step = np.maximum(last_step, np.where(to_enter > 0, entered, 0))
        open_ended = states.done[:, steps.count - 1] < steps.microbatches
        home = np.where(open_ended, last_step + steps.tail, states.home)
        own = np.maximum(states.time + left.sum(axis=1), np.where(open_ended, last_step, 0))
        return states.pick(self._objective(own, home) <= self.target)

    def _objective(self, own: IntArray, home: IntArray) -> IntArray:
        """Return the least objective, given when the device and when stage 0 are done, from the device's first op."""
        steps = self.steps
        objective: IntArray = np.maximum(own + (0 if self.post_validated else steps.head), home + steps.head)
        return objective

    def _merge(self, states: _States) -> _States:
        """Keep at most ``width`` states of the same counts: drop dominated ones, and merge the last ones."""
        if not len(states.time):
            return states
        key = states.done @ self.steps.radix
        order = np.lexsort((states.back.sum(axis=(1, 2)), states.time, key))
        states, key = states.pick(order), key[order]
        alive = np.ones(len(key), dtype=np.bool_)
        for rank in range(self.width):
            first = np.append(True, key[1:] != key[:-1])
            leader = np.flatnonzero(first)[np.cumsum(first) - 1] + rank
            same = (leader < len(key)) & (key[np.minimum(leader, len(key) - 1)] == key)
            leader = np.where(same, np.minimum(leader, len(key) - 1), np.arange(len(key)))
            later = (states.back >= states.back[leader]).all(axis=(1, 2)) & (states.home >= states.home[leader])
            worse = (np.arange(len(key)) > leader) & same & later
            alive = ~worse
            states, key = states.pick(alive), key[alive]
        return self._squeezed(states, key)

    def _squeezed(self, states: _States, key: IntArray) -> _States:
        first = np.append(True, key[1:] != key[:-1])
        rank = np.arange(len(key)) - np.flatnonzero(first)[np.cumsum(first) - 1]
        starts = np.flatnonzero(rank < self.width)
        return _States(
            states.done[starts],
            np.minimum.reduceat(states.time, starts),
            np.minimum.reduceat(states.back, starts, axis=0),
            np.minimum.reduceat(states.home, starts),
        )


def single_device_bound(least: Least, device: int, *, target: int, width: int = 8, stop: Stop = never) -> int:
    """Return ticks below which the objective cannot be, by what one device can do; 0 where this does not apply.

    Parameters
    ----------
    target
        Ticks of a known plan, above which the result does not go.
    stop
        Asked now and then whether to give up, which proves nothing.
    """
    instance = least.instance
    if instance.room[device] == UNLIMITED or not SingleDevice.applies(least):
        return 0
    steps = steps_of(least, device)
    if math.prod((steps.times + 1).tolist()) >= 1 << 62:
        return 0
    search = SingleDevice(steps, post_validated=instance.post_validated, target=target, width=width, stop=stop)
    return search.bound()
