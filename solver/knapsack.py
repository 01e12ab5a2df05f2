"""How much work a device's memory can hold at once."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from functools import lru_cache
from itertools import chain
from typing import NamedTuple

import numpy as np

from solver.least import Least
from zbplan.instance import UNLIMITED, B, F, IntArray

MOST_PAIRS = 1 << 20
"""Pairs of choices combined at once; beyond it neighbours are merged, which keeps the result an upper bound."""

Choices = tuple[IntArray, IntArray]
"""Memory units and ticks of work of each choice."""


def most_work(groups: Iterable[Choices], room: int) -> int:
    """Return the most ticks of work of one choice per group whose memory units fit into a room together.

    Every group must have a choice without memory and work. The result may be above the exact one, never below.
    """
    units, ticks = np.zeros(1, dtype=np.int64), np.zeros(1, dtype=np.int64)
    for more_units, more_ticks in groups:
        fits = more_units <= room
        more_units, more_ticks = _undominated(more_units[fits], more_ticks[fits])
        units, ticks = _merged(units, ticks, MOST_PAIRS // len(more_units))
        units, ticks = (units[:, None] + more_units).ravel(), (ticks[:, None] + more_ticks).ravel()
        units, ticks = _undominated(units[units <= room], ticks[units <= room])
    return int(ticks.max())


def _undominated(units: IntArray, ticks: IntArray) -> Choices:
    """Keep what no other choice beats in both, in the sequence of units."""
    order = np.lexsort((-ticks, units))
    units, ticks = units[order], ticks[order]
    best_before = np.concatenate([[-1], np.maximum.accumulate(ticks)[:-1]])
    return units[ticks > best_before], ticks[ticks > best_before]


def _merged(units: IntArray, ticks: IntArray, most: int) -> Choices:
    """Merge neighbours into one with the least units and the most ticks, so that at most so many are left."""
    starts = np.arange(0, len(units), max(1, -(-len(units) // max(1, most))))
    return units[starts], np.maximum.reduceat(ticks, starts)


def forwards_held(least: Least, device: int) -> int:
    """Return the most ticks of F that a device can run while it gives no memory back."""
    instance = least.instance
    stages = list(instance.stages_of[device])
    if instance.room[device] == UNLIMITED:
        return int(instance.duration[F, stages].sum())
    room = int(instance.room[device]) - int(instance.peak[stages].min())

    def groups() -> Iterator[Choices]:
        for stage in stages:
            if least.equal[stage]:
                count = np.arange(instance.microbatches + 1)
                yield count * instance.hold[F, stage, 0], count * instance.duration[F, stage, 0]
            else:
                for held, ticks in zip(instance.hold[F, stage], instance.duration[F, stage], strict=True):
                    least.go_on()
                    yield np.array([0, held]), np.array([0, ticks])

    return most_work(groups(), room)


def left_beside(least: Least, device: int, *, live: bool, held: int, own: frozenset[int]) -> int:
    """Return the most ticks of work that can be left of what a device holds beside one op.

    Parameters
    ----------
    live
        Whether microbatches can be live, with their backward op to come; else only W can be pending.
    held
        Memory units that the op and its microbatch take.
    own
        Stages of which the op's microbatch is accounted for already.
    """
    instance = least.instance
    stages = list(instance.stages_of[device])
    room = int(instance.room[device])
    if room < UNLIMITED:
        room = max(0, room - held)

    alike: dict[_Kind, int] = {}
    unlike = [stage for stage in stages if not least.equal[stage]]
    for stage in stages:
        if least.equal[stage]:
            kind = _kind(least, stage)
            alike[kind] = alike.get(kind, 0) + instance.microbatches - (stage in own)
    if not unlike:
        return _most_left(tuple(alike.items()), room, live)
    each = (choices for stage in unlike for choices in _each(least, stage, live))
    return most_work(chain(each, (_counts(kind, most, room, live) for kind, most in alike.items())), room)


@lru_cache(maxsize=256)
def _most_left(alike: tuple[tuple[_Kind, int], ...], room: int, live: bool) -> int:
    """Return the same where all stages hold equal microbatches; it is the same for devices with equal stages."""
    return most_work((_counts(kind, most, room, live) for kind, most in alike), room)


class _Kind(NamedTuple):
    """What stages of equal microbatches hold, and have left, while one is live and while its W is pending."""

    hold: int
    pending_hold: int
    closing: int
    pending: int


def _kind(least: Least, stage: int) -> _Kind:
    hold, more, less = (
        int(row[stage, 0]) for row in (least.instance.hold[F], least.instance.hold[B], least.instance.release[B])
    )
    return _Kind(hold, hold + more - less, int(least.closing[stage, 0]), int(least.pending[stage, 0]))


def _counts(kind: _Kind, most: int, room: int, live: bool) -> Choices:
    """Return the choices of stages of equal microbatches: how many are live, and how many pending, within a room.

    Without limit that is the one with the most work: microbatches may be thousands, and their pairs more than fit.
    """
    if room >= UNLIMITED:
        return np.zeros(1, dtype=np.int64), np.array([most * (kind.closing if live else kind.pending)])
    lives, pendings = np.meshgrid(
        np.arange(_fitting(kind.hold, room, most) + 1 if live else 1),
        np.arange(_fitting(kind.pending_hold, room, most) + 1),
    )
    possible = lives + pendings <= most
    lives, pendings = lives[possible], pendings[possible]
    return (
        lives * kind.hold + pendings * kind.pending_hold,
        lives * kind.closing + pendings * kind.pending,
    )


def _fitting(units: int, room: int, most: int) -> int:
    return min(most, room // units) if units > 0 else most


def _each(least: Least, stage: int, live: bool) -> Iterator[Choices]:
    instance = least.instance
    hold = instance.hold[F, stage]
    pending_hold = hold + instance.hold[B, stage] - instance.release[B, stage]
    for microbatch in range(instance.microbatches):
        least.go_on()
        units, ticks = [0, pending_hold[microbatch]], [0, least.pending[stage, microbatch]]
        if live:
            units.append(hold[microbatch])
            ticks.append(least.closing[stage, microbatch])
        yield np.array(units, dtype=np.int64), np.array(ticks, dtype=np.int64)
