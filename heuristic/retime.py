"""Retime: the times of orders that change a little again and again, in no more steps than a change makes necessary.

Times are those of ``zbplan.simulate``. What an op waits for is looked up in a table, and its end stays where the table
says from one change to the next: only what starts after the first change is timed anew, and no longer than the orders
can still be good enough.
"""

from __future__ import annotations

from typing import NamedTuple

import numpy as np

from zbplan.instance import BW, UNLIMITED, B, BoolArray, F, Instance, IntArray, Orders, W
from zbplan.jit import kernel, lean

UNKNOWN, NEVER = -1, 1 << 62

END, TICKS, FORWARD, FORWARD_LAG, BACKWARD, BACKWARD_LAG, WAKES = range(7)
"""Columns of the table of ops: where its end stands, and how long it takes; where the ends of its inputs stand, and how
long after those it may start; which other device waits for it, or -1."""


class Task(NamedTuple):
    """What the kernels read of an instance, and where the ops of each device begin."""

    table: IntArray
    hold: IntArray
    release: IntArray
    peak: IntArray
    room: IntArray
    offsets: IntArray
    stages: int
    microbatches: int
    post_validated: bool


class State(NamedTuple):
    """Orders with their times.

    Attributes
    ----------
    at
        The position of each op, where the table says its end stands; -1 for none.
    keys
        Twice the start of every op, except while it moves.
    """

    ops: IntArray
    start: IntArray
    end: IntArray
    at: IntArray
    keys: IntArray


class Space(NamedTuple):
    """Arrays to work with, made once: what is in them matters only while a change is tried.

    Attributes
    ----------
    known, free, until, position, queue, queued
        Per device: the position from which times are new, when it is free, the latest start of its next op, the
        position of that op, and the devices that may have something to run.
    touched
        Per device: whether its ops change places.
    path, moving, sequence, order
        Per op: positions on the critical path and of what moves, and a device's ops with their keys while they are
        sorted.
    """

    known: IntArray
    free: IntArray
    until: IntArray
    position: IntArray
    queue: IntArray
    queued: BoolArray
    touched: BoolArray
    path: IntArray
    moving: IntArray
    sequence: IntArray
    order: IntArray


def task_of(instance: Instance, orders: Orders) -> Task:
    """Return what is the same for all orders that give each device as many ops as some."""
    return Task(
        table=_table(instance),
        hold=instance.hold.ravel(),
        release=instance.release.ravel(),
        peak=np.tile(instance.peak.ravel(), 4),
        room=np.minimum(instance.room, UNLIMITED // 2),
        offsets=orders.offsets,
        stages=instance.stages,
        microbatches=instance.microbatches,
        post_validated=instance.post_validated,
    )


def _table(instance: Instance) -> IntArray:
    """Return a row per op. What waits for nothing has its inputs at the very end, where the end is 0."""
    cells = instance.duration[F].size
    stage, cell = np.arange(cells) // instance.microbatches, np.arange(cells)
    table = np.zeros((4, cells, 8), dtype=np.int64)  # a row is what a processor reads at once
    table[:, :, END] = cell + cells * np.array([F, B, W, B])[:, None]
    table[:, :, TICKS] = instance.duration.reshape(4, cells)
    table[:, :, [FORWARD, BACKWARD]] = 3 * cells
    table[:, :, WAKES] = -1
    first, last = stage == 0, stage == instance.stages - 1
    table[F, ~first, FORWARD] = F * cells + cell[~first] - instance.microbatches
    table[F, ~first, FORWARD_LAG] = instance.forward_lag[stage[~first] - 1]
    table[F, ~last, WAKES] = instance.device_of[stage[~last] + 1]
    for kind in (B, BW):
        table[kind, :, FORWARD] = F * cells + cell
        table[kind, ~last, BACKWARD] = B * cells + cell[~last] + instance.microbatches
        table[kind, ~last, BACKWARD_LAG] = instance.backward_lag[stage[~last]]
        table[kind, ~first, WAKES] = instance.device_of[stage[~first] - 1]
    table[W, :, FORWARD] = B * cells + cell
    table[table[:, :, WAKES] == instance.device_of[stage], WAKES] = -1
    return table.reshape(4 * cells, 8)


@kernel
def state_of(task: Task, ops: IntArray) -> State:
    """Return orders that can run, with their times."""
    at = np.full(3 * task.stages * task.microbatches, -1, dtype=np.int64)
    none = np.zeros_like(ops)
    state, space = State(ops.copy(), none.copy(), none.copy(), at, none.copy()), space_of(task, len(ops))
    space.known[:] = task.offsets[:-1]
    retime(task, state, ends_of(task, state), NEVER, space)
    note_positions(task, state, space)
    return state


@kernel
def space_of(task: Task, ops: int) -> Space:
    """Return arrays to work with on a number of ops."""
    devices = len(task.room)
    five, four = np.zeros((5, devices), dtype=np.int64), np.zeros((4, ops), dtype=np.int64)
    two = np.zeros((2, devices), dtype=np.bool_)
    return Space(five[0], five[1], five[2], five[3], five[4], two[0], two[1], four[0], four[1], four[2], four[3])


@kernel
def ends_of(task: Task, state: State) -> IntArray:
    """Return the end of every op where the table says, and 0 at the very end."""
    ends = np.zeros(3 * task.stages * task.microbatches + 1, dtype=np.int64)
    for at in range(len(state.ops)):
        ends[task.table[state.ops[at], END]] = state.end[at]
    return ends


@lean
def know_before(task: Task, state: State, since: int, space: Space) -> int:
    """Know the times of all ops that start before a tick; return how many do not."""
    later = 0
    for device in range(len(space.known)):
        low, high = task.offsets[device], task.offsets[device + 1]
        later += high
        while low < high:
            middle = (low + high) // 2
            if state.start[middle] < since:
                low = middle + 1
            else:
                high = middle
        space.known[device] = low
        later -= low
    return later


@lean
def retime(task: Task, tried: State, ends: IntArray, most: int, space: Space) -> bool:
    """Time orders from the known positions on; return whether all can run with an objective that is low enough.

    It ends as soon as what a device still has to run is too much.
    """
    table, offsets, ops, start, end = task.table, task.offsets, tried.ops, tried.start, tried.end
    free, until, position, queue, queued = space.free, space.until, space.position, space.queue, space.queued
    _forget(task, tried, ends, most, space)
    length = len(queue)
    while length > 0:
        length -= 1
        device = queue[length]
        queued[device] = False
        while position[device] < offsets[device + 1]:
            at = position[device]
            op = ops[at]
            forward, backward = ends[table[op, FORWARD]], ends[table[op, BACKWARD]]
            if forward == UNKNOWN or backward == UNKNOWN:
                break
            begin = max(free[device], forward + table[op, FORWARD_LAG], backward + table[op, BACKWARD_LAG])
            if at == offsets[device] and task.post_validated:
                until[device] += begin
            if begin > until[device]:
                return False
            until[device] += table[op, TICKS]
            start[at], end[at] = begin, begin + table[op, TICKS]
            free[device] = ends[table[op, END]] = end[at]
            position[device] += 1
            other = table[op, WAKES]
            if other >= 0 and not queued[other]:
                queue[length], queued[other] = other, True
                length += 1
    for device in range(len(position)):
        if position[device] < offsets[device + 1]:
            return False
    return objective(task, tried) <= most


@lean
def _forget(task: Task, tried: State, ends: IntArray, most: int, space: Space) -> None:
    """Forget ends from the known positions on; note when devices are free, and the latest start of their next op."""
    table, offsets, ops = task.table, task.offsets, tried.ops
    devices = len(space.known)
    for device in range(devices):
        first, known = offsets[device], space.known[device]
        free, until = 0, most
        for at in range(known, offsets[device + 1]):
            ends[table[ops[at], END]] = UNKNOWN
            until -= table[ops[at], TICKS]
        if known > first:
            free = tried.end[known - 1]
            until += tried.start[first] if task.post_validated else 0
        space.free[device], space.until[device], space.position[device] = free, until, known
        space.queue[devices - 1 - device], space.queued[device] = device, True


@lean
def copy(task: Task, source: State, target: State, space: Space) -> None:
    """Make orders and times those of another state from the known positions on."""
    for device in range(len(space.known)):
        for at in range(space.known[device], task.offsets[device + 1]):
            target.ops[at], target.start[at], target.end[at] = source.ops[at], source.start[at], source.end[at]


@lean
def note_positions(task: Task, state: State, space: Space) -> None:
    """Note where each op is from the known positions on, and its key."""
    table, ops, positions = task.table, state.ops, state.at
    for device in range(len(space.known)):
        for at in range(space.known[device], task.offsets[device + 1]):
            positions[table[ops[at], END]] = at
            state.keys[at] = 2 * state.start[at]


@lean
def note_ends(task: Task, state: State, ends: IntArray, space: Space) -> None:
    """Note when each op ends from the known positions on."""
    for device in range(len(space.known)):
        for at in range(space.known[device], task.offsets[device + 1]):
            ends[task.table[state.ops[at], END]] = state.end[at]


@lean
def objective(task: Task, state: State) -> int:
    """Return what the objective makes of the times."""
    longest, earliest, latest = 0, state.start[0], 0
    for device in range(len(task.room)):
        first, last = state.start[task.offsets[device]], state.end[task.offsets[device + 1] - 1]
        longest, earliest, latest = max(longest, last - first), min(earliest, first), max(latest, last)
    return int(longest if task.post_validated else latest - earliest)


@lean
def critical_path(task: Task, state: State, ends: IntArray, path: IntArray) -> int:
    """Write the positions of ops that follow each other without a wait, from the last to the first; return how many.

    The last one decides the objective. Where an op waits for both, it is an input that comes before it rather than the
    op before it on the device.
    """
    table, ops, start, end, positions = task.table, state.ops, state.start, state.end, state.at
    length, none = 0, len(ends) - 1
    at = _last(task, state)
    while at >= 0 and length < len(path):
        path[length] = at
        length += 1
        op, begin = ops[at], start[at]
        backward, forward = table[op, BACKWARD], table[op, FORWARD]
        if backward != none and ends[backward] + table[op, BACKWARD_LAG] == begin:
            at = positions[backward]
        elif forward != none and ends[forward] + table[op, FORWARD_LAG] == begin:
            at = positions[forward]
        else:
            at = at - 1 if begin > 0 and end[at - 1] == begin else -1
    return length


@lean
def _last(task: Task, state: State) -> int:
    """Return the position of the last op of the device that decides the objective."""
    longest, last = -1, 0
    for device in range(len(task.room)):
        first, at = task.offsets[device], task.offsets[device + 1] - 1
        length = state.end[at] - (state.start[first] if task.post_validated else 0)
        if length > longest:
            longest, last = length, at
    return int(last)
