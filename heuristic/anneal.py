"""Annealing: orders change a little at a time and stay as they become if that is no worse, or not much worse at first.

One change puts ops forward or off in time: those of some kinds, on a few stages, of a few microbatches. The ops of each
device are then sorted by start again, and W moves up where memory asks for it. Most changes begin at an op that is on
the critical path, for no other one can make the objective smaller. Effort is counted, not timed, and draws are whole
numbers: equal inputs give equal orders.
"""

from __future__ import annotations

from typing import NamedTuple

import numpy as np

from zbplan.instance import BW, UNLIMITED, B, BoolArray, F, Instance, IntArray, Orders, W
from zbplan.jit import inlined, kernel
from zbplan.simulate import run_orders

KINDS = np.array([1 << F, 1 << F, 1 << B, 1 << B, 1 << W, 1 << F | 1 << B, 1 << B | 1 << W, 1 << F | 1 << B | 1 << W])
"""Sets of kinds that change together, as bits; BW counts as B."""

CRITICAL, SPREAD = 80, 15
"""Percent of the changes that begin on the critical path; and that take every n-th microbatch of their range."""

PLACED, NEVER = -1, 1 << 62


class _Task(NamedTuple):
    """What the kernels read of an instance, and where the ops of each device begin."""

    duration: IntArray
    device_of: IntArray
    forward_lag: IntArray
    backward_lag: IntArray
    hold: IntArray
    release: IntArray
    peak: IntArray
    room: IntArray
    post_validated: bool
    offsets: IntArray


class _State(NamedTuple):
    """Orders with their times, and the position of each op: per kind F, B (or BW) and W, and cell; -1 for none."""

    ops: IntArray
    start: IntArray
    end: IntArray
    at: IntArray


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
    task = _Task(
        duration=instance.duration,
        device_of=instance.device_of,
        forward_lag=instance.forward_lag,
        backward_lag=instance.backward_lag,
        hold=instance.hold.ravel(),
        release=instance.release.ravel(),
        peak=instance.peak.ravel(),
        room=np.minimum(instance.room, UNLIMITED // 2),
        post_validated=instance.post_validated,
        offsets=orders.offsets,
    )
    unit = max(1, int(instance.duration[:W].mean()))
    return Orders(_anneal(task, orders.ops, effort, int(heat * unit), unit, seed), orders.offsets)


@kernel
def _anneal(task: _Task, ops: IntArray, effort: int, heat: int, unit: int, seed: int) -> IntArray:
    """Return the best ops found."""
    random = np.full(1, seed, dtype=np.int64)
    state, tried = _state(task, ops), _state(task, ops)
    best, lowest = ops.copy(), _objective(task, state)
    current, path, spent = lowest, _critical_path(task, state), 0
    while spent < effort:
        moved, since = _apply(task, state, _draw_change(task, state, path, unit, random), tried.ops)
        spent += 50 + moved
        if since >= NEVER:
            continue
        timed, complete = _retime(task, state, tried, since)
        spent += timed
        objective = _objective(task, tried) if complete else NEVER
        allowed = heat * (effort - min(spent, effort)) // effort * _draw(random, 100) // 100
        if objective <= current + allowed:
            _accept(task, state, tried)
            current, path = objective, _critical_path(task, state)
        if current < lowest:
            best[:], lowest = state.ops, current
    return best


@kernel
def _state(task: _Task, ops: IntArray) -> _State:
    state = _State(
        ops.copy(), np.zeros_like(ops), np.zeros_like(ops), np.full((3, task.duration[0].size), -1, dtype=np.int64)
    )
    _run(task, state, task.offsets[:-1])
    _accept(task, state, state)
    return state


@inlined
def _run(task: _Task, state: _State, known: IntArray) -> IntArray:
    return run_orders(
        state.ops,
        task.offsets,
        task.duration,
        task.device_of,
        task.forward_lag,
        task.backward_lag,
        np.zeros(len(task.room), dtype=np.int64),
        known,
        state.start,
        state.end,
    )


@kernel
def _retime(task: _Task, state: _State, tried: _State, since: int) -> tuple[int, bool]:
    """Time the ops that are tried, as before up to a tick; return how many are timed anew, and whether all can run."""
    known = task.offsets[:-1].copy()
    for device in range(len(known)):
        known[device] += np.searchsorted(state.start[task.offsets[device] : task.offsets[device + 1]], since)
    tried.start[:], tried.end[:] = state.start, state.end
    position = _run(task, tried, known)
    return len(state.ops) - int((known - task.offsets[:-1]).sum()), bool((position == task.offsets[1:]).all())


@kernel
def _accept(task: _Task, state: _State, tried: _State) -> None:
    state.ops[:], state.start[:], state.end[:] = tried.ops, tried.start, tried.end
    for position, op in enumerate(state.ops):
        kind, cell = divmod(op, task.duration[0].size)
        state.at[B if kind == BW else kind, cell] = position


@kernel
def _objective(task: _Task, state: _State) -> int:
    longest, earliest, latest = 0, state.start[0], 0
    for device in range(len(task.room)):
        first, last = state.start[task.offsets[device]], state.end[task.offsets[device + 1] - 1]
        longest, earliest, latest = max(longest, last - first), min(earliest, first), max(latest, last)
    return int(longest if task.post_validated else latest - earliest)


@kernel
def _critical_path(task: _Task, state: _State) -> IntArray:
    """Return the positions of ops that follow each other without a wait, from the end that decides the objective."""
    path = np.zeros(len(state.ops), dtype=np.int64)
    longest, at = -1, 0
    for device in range(len(task.room)):
        first, last = task.offsets[device], task.offsets[device + 1] - 1
        length = state.end[last] - (state.start[first] if task.post_validated else 0)
        if length > longest:
            longest, at = length, last
    length = 0
    while at >= 0:
        path[length] = at
        length += 1
        at = _held_up_by(task, state, at) if length < len(path) else -1
    return path[:length]


@kernel
def _held_up_by(task: _Task, state: _State, at: int) -> int:
    """Return the position of an op that ends just when another one can start, an input if there is one; else -1."""
    _, stages, microbatches = task.duration.shape
    start, end = state.start, state.end
    kind, cell = divmod(state.ops[at], stages * microbatches)
    stage = cell // microbatches
    if kind == F and stage > 0:
        given = state.at[F, cell - microbatches]
        if end[given] + task.forward_lag[stage - 1] == start[at]:
            return int(given)
    elif kind in (B, BW):
        if stage < stages - 1:
            given = state.at[B, cell + microbatches]
            if end[given] + task.backward_lag[stage] == start[at]:
                return int(given)
        given = state.at[F, cell]
        if end[given] == start[at]:
            return int(given)
    if at > task.offsets[task.device_of[stage]] and end[at - 1] == start[at]:
        return at - 1
    return -1


@inlined
def _draw(random: IntArray, below: int) -> int:
    """Return a whole number from 0 on (Park and Miller's generator: its products fit into 64 bits)."""
    random[0] = random[0] * 48271 % 2147483647
    return int(random[0]) * below // 2147483647


@inlined
def _length(random: IntArray, most: int) -> int:
    """Return 1 in half of the draws, else a power of two below 64, or the most there is."""
    choice = _draw(random, 16)
    return 1 if choice < 8 else most if choice == 8 else 1 << _draw(random, 6)


@kernel
def _draw_change(task: _Task, state: _State, path: IntArray, unit: int, random: IntArray) -> _Change:
    """Return ops around some op, or around one on the critical path: that one sooner, or the one before it later."""
    _, stages, microbatches = task.duration.shape
    kinds = KINDS[_draw(random, len(KINDS))]
    ticks = 1 + _draw(random, max(1, unit * (1 << _draw(random, 6)) // 16))
    at = _draw(random, len(state.ops))
    later = _draw(random, 2) == 1
    if _draw(random, 100) < CRITICAL:
        at = max(0, int(path[_draw(random, len(path))]) - later)
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


@kernel
def _apply(task: _Task, state: _State, change: _Change, tried: IntArray) -> tuple[int, int]:
    """Write changed orders; return how many ops were put in sequence, and when the first one starts that is new.

    That is NEVER if nothing changes, or if memory has no room.
    """
    member = _members(task, state, change)
    tried[:] = state.ops
    touched = np.zeros(len(task.room), dtype=np.bool_)
    for stage in range(change.first_stage, change.end_stage):
        touched[task.device_of[stage]] = True
    moved, since = 0, NEVER
    for device in np.flatnonzero(touched):
        first, end = task.offsets[device], task.offsets[device + 1]
        sequence = _sorted(task, state, member, change.ticks, first, end)
        moved += len(sequence)
        if not _packed(task, sequence, task.room[device], tried[first:end]):
            return moved, NEVER
        for at in range(first, end):
            if tried[at] != state.ops[at]:
                since = min(since, state.start[at])
                break
    return moved, since


@kernel
def _members(task: _Task, state: _State, change: _Change) -> BoolArray:
    """Return at which positions ops move."""
    member = np.zeros(len(state.ops), dtype=np.bool_)
    microbatches = task.duration.shape[2]
    for kind in range(3):
        if change.kinds >> kind & 1:
            for stage in range(change.first_stage, change.end_stage):
                for microbatch in range(change.first_microbatch, change.end_microbatch, change.every):
                    at = state.at[kind, stage * microbatches + microbatch]
                    if at >= 0:
                        member[at] = True
    return member


@kernel
def _sorted(task: _Task, state: _State, member: BoolArray, ticks: int, first: int, end: int) -> IntArray:
    """Return the ops of a device by changed start."""
    keys = np.empty(end - first, dtype=np.int64)
    sequence = np.empty(end - first, dtype=np.int64)
    for count in range(end - first):
        key = 2 * state.start[first + count]
        if member[first + count]:
            key = _changed_key(task, state, member, first + count, key + 2 * ticks)
        at = count
        while at > 0 and keys[at - 1] > key:
            keys[at], sequence[at] = keys[at - 1], sequence[at - 1]
            at -= 1
        keys[at], sequence[at] = key, state.ops[first + count]
    return sequence


@inlined
def _changed_key(task: _Task, state: _State, member: BoolArray, at: int, key: int) -> int:
    """Return a key that leaves an op between the one of its cell that comes before and the one that comes after."""
    kind, cell = divmod(state.ops[at], task.duration[0].size)
    kind = B if kind == BW else kind
    after = state.at[kind + 1, cell] if kind < W else -1
    if after >= 0 and not member[after]:
        key = min(key, 2 * state.start[after] - 1)
    before = state.at[kind - 1, cell] if kind > F else -1
    if before >= 0 and not member[before]:
        key = max(key, 2 * state.start[before] + 1)
    return key


@kernel
def _packed(task: _Task, sequence: IntArray, room: int, ops: IntArray) -> bool:
    """Write a sequence in which W goes up to where memory would not do; return False where that does not help."""
    live, count = 0, 0
    for at in range(len(sequence)):
        while sequence[at] != PLACED:
            chosen = at if _fits(task, sequence[at], live, room) else _next_weight(sequence, at, len(task.peak))
            if chosen < 0 or not _fits(task, sequence[chosen], live, room):
                return False
            op = sequence[chosen]
            ops[count], sequence[chosen] = op, PLACED
            live += task.hold[op] - task.release[op]
            count += 1
    return True


@inlined
def _fits(task: _Task, op: int, live: int, room: int) -> bool:
    return bool(live + task.hold[op] + task.peak[op % len(task.peak)] <= room)


@inlined
def _next_weight(sequence: IntArray, at: int, cells: int) -> int:
    """Return where the next W is that waits for nothing; -1 if its B is still to come, or none is left."""
    found = -1
    for later in range(at + 1, len(sequence)):
        if sequence[later] // cells == W:
            found = later
            break
    for between in range(at, found):
        if sequence[between] == sequence[max(0, found)] - cells:
            return -1
    return found
