"""Annealing: orders change a little at a time and stay as they become if that is no worse, or not much worse at first.

One change puts ops forward or off in time: those of some kinds, on a few stages, of a few microbatches. The ops of each
device are then sorted by start again, and W moves up where memory asks for it. Most changes begin at an op that is on
the critical path, for no other one can make the objective smaller. Effort is counted, not timed, and draws are whole
numbers: equal inputs give equal orders.
"""

from __future__ import annotations

from typing import NamedTuple

import numpy as np

from heuristic.retime import (
    NEVER,
    Space,
    State,
    Task,
    copy,
    critical_path,
    ends_of,
    know_before,
    note_ends,
    note_positions,
    objective,
    retime,
    space_of,
    state_of,
    task_of,
)
from zbplan.instance import BW, B, F, Instance, IntArray, Orders, W
from zbplan.jit import inlined, kernel, lean

KINDS = np.array([1 << F, 1 << F, 1 << B, 1 << B, 1 << W, 1 << F | 1 << B, 1 << B | 1 << W, 1 << F | 1 << B | 1 << W])
"""Sets of kinds that change together, as bits; BW counts as B."""

CRITICAL, SPREAD = 80, 15
"""Percent of the changes that begin on the critical path; and that take every n-th microbatch of their range."""

PLACED = -1


class _Change(NamedTuple):
    """Which ops move, and by how many ticks: every ``every``-th microbatch of a range, on a range of stages."""

    kinds: int
    first_stage: int
    end_stage: int
    first_microbatch: int
    end_microbatch: int
    every: int
    ticks: int


def anneal(instance: Instance, orders: Orders, *, effort: int, heat: float = 0.0, seed: int = 1) -> Orders:
    """Return the best orders found around some; these themselves if none is better.

    They stay legal if they were, and each op stays what it is: B and W, or BW.

    Parameters
    ----------
    effort
        Ops to put in sequence or to time in all tries together; about 100 million take a second.
    heat
        By how much a change may worsen the objective at first, in mean durations of an op; less and less later.
    seed
        Of the random numbers.
    """
    task = task_of(instance, orders)
    unit = max(1, int(instance.duration[:W].mean()))
    return Orders(_anneal(task, orders.ops, effort, int(heat * unit), unit, seed), orders.offsets)


@kernel
def _anneal(task: Task, ops: IntArray, effort: int, heat: int, unit: int, seed: int) -> IntArray:
    """Return the best ops found."""
    state, tried = state_of(task, ops), state_of(task, ops)
    space, random, best = space_of(task, len(ops)), np.full(1, seed, dtype=np.int64), ops.copy()
    _improve(task, state, tried, ends_of(task, state), space, effort, heat, unit, random, best)
    return best


@lean
def _improve(
    task: Task,
    state: State,
    tried: State,
    ends: IntArray,
    space: Space,
    effort: int,
    heat: int,
    unit: int,
    random: IntArray,
    best: IntArray,
) -> None:
    """Write the best ops found. What is tried is the state again, position by position, before the next change."""
    current = lowest = objective(task, state)
    length, spent = critical_path(task, state, ends, space.path), 0
    while spent < effort:
        change = _draw_change(task, state, space.path, length, unit, random)
        moved, since = _apply(task, state, change, tried.ops, space)
        spent += 50 + moved
        if since >= NEVER:
            continue
        spent += know_before(task, state, since, space)
        allowed = _part(heat, effort - min(spent, effort), effort) * _draw(random, 100) // 100
        if retime(task, tried, ends, current + allowed, space):
            copy(task, tried, state, space)
            note_positions(task, state, space)
            current, length = objective(task, state), critical_path(task, state, ends, space.path)
        else:
            copy(task, state, tried, space)
            note_ends(task, state, ends, space)
        if current < lowest:
            lowest = current
            _write(state.ops, best)


@inlined
def _part(amount: int, part: int, whole: int) -> int:
    """Return the part of a whole of an amount, rounded down: of ticks, too, whose product passes 64 bits."""
    return amount // whole * part + amount % whole * part // whole


@inlined
def _draw(random: IntArray, below: int) -> int:
    """Return a whole number from 0 on (Park and Miller's generator: its products fit into 64 bits)."""
    random[0] = random[0] * 48271 % 2147483647
    return _part(below, int(random[0]), 2147483647)


@inlined
def _length(random: IntArray, most: int) -> int:
    """Return 1 in half of the draws, else a power of two below 64, or the most there is."""
    choice = _draw(random, 16)
    return 1 if choice < 8 else most if choice == 8 else 1 << _draw(random, 6)


@lean
def _draw_change(task: Task, state: State, path: IntArray, length: int, unit: int, random: IntArray) -> _Change:
    """Return ops around some op, or around one on the critical path: that one sooner, or the one before it later."""
    stages, microbatches = task.stages, task.microbatches
    kinds = KINDS[_draw(random, len(KINDS))]
    ticks = 1 + _draw(random, max(1, unit * (1 << _draw(random, 6)) // 16))
    at = _draw(random, len(state.ops))
    later = _draw(random, 2) == 1
    if _draw(random, 100) < CRITICAL:
        at = max(0, int(path[_draw(random, length)]) - later)
    kind, cell = divmod(state.ops[at], stages * microbatches)
    if _draw(random, 4) > 0:
        kinds = 1 << (B if kind == BW else kind)
    stage, microbatch = divmod(cell, microbatches)
    return _Change(
        kinds,
        stage,
        min(stages, stage + _length(random, stages)),
        microbatch,
        min(microbatches, microbatch + _length(random, microbatches)),
        1 + _draw(random, 8) if _draw(random, 100) < SPREAD else 1,
        ticks if later else -ticks,
    )


@lean
def _apply(task: Task, state: State, change: _Change, tried: IntArray, space: Space) -> tuple[int, int]:
    """Write changed orders; return how many ops were looked at, and when the first one starts that is new.

    That is NEVER if nothing changes, or if memory has no room.
    """
    count = _move(task, state, change, space.moving)
    _touch(task, state, space, count)
    looked_at, since, fits = count, NEVER, True
    for device in range(len(space.touched)):
        if space.touched[device] and fits:
            first, end = task.offsets[device], task.offsets[device + 1]
            _sort(state.ops[first:end], state.keys[first:end], space)
            looked_at += end - first
            fits = _pack(task, space.sequence[: end - first], task.room[device], tried[first:end])
            since = min(since, _first_new(state, tried, first, end))
    for at in space.moving[:count]:
        state.keys[at] = 2 * state.start[at]
    if fits:
        return looked_at, since
    _write(state.ops, tried)
    return looked_at, NEVER


@inlined
def _write(ops: IntArray, to: IntArray) -> None:
    for at in range(len(ops)):
        to[at] = ops[at]


@inlined
def _first_new(state: State, tried: IntArray, first: int, end: int) -> int:
    """Return when the first op of a device starts that is another one now; NEVER if none is."""
    at = first
    while at < end and tried[at] == state.ops[at]:
        at += 1
    return int(state.start[at]) if at < end else NEVER


@lean
def _move(task: Task, state: State, change: _Change, moving: IntArray) -> int:
    """Write the keys of the ops that move, and their positions; return how many.

    An op stays between the one of its cell that comes before and the one that comes after, if those do not move too.
    """
    at, start, keys = state.at, state.start, state.keys
    microbatches, cells, count = task.microbatches, task.stages * task.microbatches, 0
    for kind in range(3):
        if not change.kinds >> kind & 1:
            continue
        bounded_above = kind < W and not change.kinds >> (kind + 1) & 1
        bounded_below = kind > F and not change.kinds >> (kind - 1) & 1
        for stage in range(change.first_stage, change.end_stage):
            for microbatch in range(change.first_microbatch, change.end_microbatch, change.every):
                cell = kind * cells + stage * microbatches + microbatch
                here = at[cell]
                if here < 0:
                    continue
                key = 2 * (start[here] + change.ticks)
                if bounded_above and at[cell + cells] >= 0:
                    key = min(key, 2 * start[at[cell + cells]] - 1)
                if bounded_below:
                    key = max(key, 2 * start[at[cell - cells]] + 1)
                keys[here] = key
                moving[count] = here
                count += 1
    return count


@lean
def _touch(task: Task, state: State, space: Space, count: int) -> None:
    """Note on which devices an op that moves passes the one beside it: most changes are too small for that."""
    keys, offsets, touched, device = state.keys, task.offsets, space.touched, 0
    touched[:] = False
    for at in space.moving[:count]:
        while at < offsets[device]:
            device -= 1
        while at >= offsets[device + 1]:
            device += 1
        if not touched[device]:
            earlier = at > offsets[device] and keys[at - 1] > keys[at]
            touched[device] = earlier or (at + 1 < offsets[device + 1] and keys[at] > keys[at + 1])


@lean
def _sort(ops: IntArray, by: IntArray, space: Space) -> None:
    """Write the sequence of ops by their keys."""
    keys, sequence = space.order, space.sequence
    for count in range(len(ops)):
        key, op, at = by[count], ops[count], count
        while at > 0 and keys[at - 1] > key:
            keys[at], sequence[at] = keys[at - 1], sequence[at - 1]
            at -= 1
        keys[at], sequence[at] = key, op


@lean
def _pack(task: Task, sequence: IntArray, room: int, ops: IntArray) -> bool:
    """Write a sequence in which W goes up to where memory would not do; return False where that does not help."""
    hold, release, peak = task.hold, task.release, task.peak
    cells = len(peak) // 4
    live, count = 0, 0
    for at in range(len(sequence)):
        while sequence[at] != PLACED:
            chosen = at
            if live + hold[sequence[at]] + peak[sequence[at]] > room:
                chosen = _next_weight(sequence, at, cells)
                if chosen < 0 or live + hold[sequence[chosen]] + peak[sequence[chosen]] > room:
                    return False
            op = sequence[chosen]
            ops[count], sequence[chosen] = op, PLACED
            live += hold[op] - release[op]
            count += 1
    return True


@lean
def _next_weight(sequence: IntArray, at: int, cells: int) -> int:
    """Return where the next W is that waits for nothing; -1 if its B is still to come, or none is left."""
    found = -1
    for later in range(at + 1, len(sequence)):
        if W * cells <= sequence[later] < BW * cells:
            found = later
            break
    for between in range(at, found):
        if sequence[between] == sequence[max(0, found)] - cells:
            return -1
    return found
