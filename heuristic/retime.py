"""Retime: the times of orders that change a little again and again, in no more steps than a change makes necessary.

Times are those of ``zbplan.simulate``. What an op waits for is looked up in a table, and its end stays where the table
says from one change to the next: only what starts after the first change is timed anew, and no longer than the orders
can still be good enough.
"""

from __future__ import annotations

from typing import NamedTuple

import numpy as np

from zbplan.instance import BW, UNLIMITED, B, F, Instance, IntArray, Orders, W
from zbplan.jit import kernel

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
        The position of each op: per kind F, B (or BW) and W, and cell; -1 for none.
    keys
        Twice the start of every op, except while it moves.
    moving
        Space for positions.
    """

    ops: IntArray
    start: IntArray
    end: IntArray
    at: IntArray
    keys: IntArray
    moving: IntArray


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
    at = np.full((3, task.stages * task.microbatches), -1, dtype=np.int64)
    none = np.zeros_like(ops)
    state = State(ops.copy(), none.copy(), none.copy(), at, none.copy(), none.copy())
    retime(task, state, task.offsets[:-1], ends_of(task, state), NEVER)
    note_positions(task, state, task.offsets[:-1])
    return state


@kernel
def ends_of(task: Task, state: State) -> IntArray:
    """Return the end of every op where the table says, and 0 at the very end."""
    ends = np.zeros(3 * task.stages * task.microbatches + 1, dtype=np.int64)
    note_ends(task, state, task.offsets[:-1], ends)
    return ends


@kernel
def known_before(task: Task, state: State, since: int) -> IntArray:
    """Return, per device, the position from which ops start at a tick or later."""
    known = task.offsets[:-1].copy()
    for device in range(len(known)):
        known[device] += np.searchsorted(state.start[task.offsets[device] : task.offsets[device + 1]], since)
    return known


@kernel
def retime(task: Task, tried: State, known: IntArray, ends: IntArray, most: int) -> bool:
    """Time orders from the known positions on; return whether all can run with an objective that is low enough.

    It ends as soon as what a device still has to run is too much.
    """
    table, offsets, ops, start, end = task.table, task.offsets, tried.ops, tried.start, tried.end
    devices = len(known)
    free, until = _forgotten(task, tried, known, ends, most)
    position, queue, queued = known.copy(), np.arange(devices - 1, -1, -1), np.ones(devices, np.bool_)
    length = devices
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
    return bool((position == offsets[1:]).all()) and objective(task, tried) <= most


@kernel
def _forgotten(task: Task, tried: State, known: IntArray, ends: IntArray, most: int) -> tuple[IntArray, IntArray]:
    """Forget ends from the known positions on; return when devices are free, and the latest start of their next op."""
    table, offsets, ops = task.table, task.offsets, tried.ops
    free, until = np.zeros(len(known), dtype=np.int64), np.full(len(known), most)
    for device in range(len(known)):
        for at in range(known[device], offsets[device + 1]):
            ends[table[ops[at], END]] = UNKNOWN
            until[device] -= table[ops[at], TICKS]
        if known[device] > offsets[device]:
            free[device] = tried.end[known[device] - 1]
            until[device] += tried.start[offsets[device]] if task.post_validated else 0
    return free, until


@kernel
def copy(task: Task, source: State, target: State, known: IntArray) -> None:
    """Make orders and times those of another state from the known positions on."""
    for device in range(len(known)):
        first, end = known[device], task.offsets[device + 1]
        target.ops[first:end] = source.ops[first:end]
        target.start[first:end] = source.start[first:end]
        target.end[first:end] = source.end[first:end]


@kernel
def note_positions(task: Task, state: State, known: IntArray) -> None:
    """Note where each op is from the known positions on, and its key."""
    table, ops, positions, start, keys = task.table, state.ops, state.at, state.start, state.keys
    cells = positions.shape[1]
    for device in range(len(known)):
        for at in range(known[device], task.offsets[device + 1]):
            kind, cell = divmod(table[ops[at], END], cells)
            positions[kind, cell] = at
            keys[at] = 2 * start[at]


@kernel
def note_ends(task: Task, state: State, known: IntArray, ends: IntArray) -> None:
    """Note when each op ends from the known positions on."""
    table, ops, end = task.table, state.ops, state.end
    for device in range(len(known)):
        for at in range(known[device], task.offsets[device + 1]):
            ends[table[ops[at], END]] = end[at]


@kernel
def objective(task: Task, state: State) -> int:
    """Return what the objective makes of the times."""
    longest, earliest, latest = 0, state.start[0], 0
    for device in range(len(task.room)):
        first, last = state.start[task.offsets[device]], state.end[task.offsets[device + 1] - 1]
        longest, earliest, latest = max(longest, last - first), min(earliest, first), max(latest, last)
    return int(longest if task.post_validated else latest - earliest)


@kernel
def critical_path(task: Task, state: State, ends: IntArray) -> IntArray:
    """Return the positions of ops that follow each other without a wait, from the end that decides the objective.

    Where an op waits for both, it is an input that comes before it rather than the op before it on the device.
    """
    table, ops, start, end, positions = task.table, state.ops, state.start, state.end, state.at.ravel()
    path, length, none = np.empty(len(ops), dtype=np.int64), 0, len(ends) - 1
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
    return path[:length]


@kernel
def _last(task: Task, state: State) -> int:
    """Return the position of the last op of the device that decides the objective."""
    longest, last = -1, 0
    for device in range(len(task.room)):
        first, at = task.offsets[device], task.offsets[device + 1] - 1
        length = state.end[at] - (state.start[first] if task.post_validated else 0)
        if length > longest:
            longest, last = length, at
    return int(last)
