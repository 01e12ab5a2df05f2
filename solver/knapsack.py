"""How much work a device's memory can hold at once."""

from __future__ import annotations

from collections.abc import Iterator

import numpy as np

from solver.least import Least
from zbplan.instance import UNLIMITED, B, F, IntArray

MOST_PAIRS = 1 << 20
"""Pairs of choices combined at once; beyond it neighbours are merged, which keeps the result an upper bound."""

Choices = tuple[IntArray, IntArray]
"""Memory units and ticks of work of each choice."""


def most_work(groups: Iterator[Choices], room: int) -> int:
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

    def groups() -> Iterator[Choices]:
        alike: dict[tuple[int, ...], list[int]] = {}
        for stage in stages:
            if least.equal[stage]:
                alike.setdefault(_kind(least, stage), []).append(stage)
            else:
                yield from _each(least, stage, live)
        for same in alike.values():
            most = sum(instance.microbatches - (stage in own) for stage in same)
            yield _counts(least, same[0], most, live, room)

    return most_work(groups(), room)


def _kind(least: Least, stage: int) -> tuple[int, ...]:
    """Return what makes stages of equal microbatches alike in what they can hold and have left."""
    instance = least.instance
    rows = (instance.hold[F], instance.hold[B], instance.release[B], least.closing, least.pending)
    return tuple(int(row[stage, 0]) for row in rows)


def _counts(least: Least, stage: int, most: int, live: bool, room: int) -> Choices:
    """Return the choices of a stage of equal microbatches: how many are live, and how many pending, within a room."""
    hold = int(least.instance.hold[F, stage, 0])
    pending_hold = hold + int(least.instance.hold[B, stage, 0] - least.instance.release[B, stage, 0])
    lives, pendings = np.meshgrid(
        np.arange(_fitting(hold, room, most) + 1 if live else 1), np.arange(_fitting(pending_hold, room, most) + 1)
    )
    possible = lives + pendings <= most
    lives, pendings = lives[possible], pendings[possible]
    return (
        lives * hold + pendings * pending_hold,
        lives * least.closing[stage, 0] + pendings * least.pending[stage, 0],
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
