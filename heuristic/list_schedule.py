"""List scheduling: one pass over time that gives every idle device its best op under a policy.

It is the general tool behind every plan that has no name: any placement, any memory limit, any times. A policy only
says what is preferred; that the orders are legal, fit into memory and end is the scheduler's own doing:

- Every stage runs F and B in the policy's launch sequence, so the oldest unfinished microbatch of a device is the same
  on all its stages.
- Beside the oldest microbatch a device starts F only if, with every pending W done, there is still room for the oldest
  one to reach all the device's stages, and for the highest peak. So the oldest microbatch can always go on, the next
  one after it, and nothing can deadlock.
- B runs as BW where splitting it would not fit.
"""

from __future__ import annotations

from typing import NamedTuple

import numpy as np

from zbplan.instance import BW, B, BoolArray, F, Instance, IntArray, Orders, W
from zbplan.jit import kernel

NEVER = 1 << 62

FORWARDS, BACKWARDS = 0, 1
"""Rows of ``_Run.done``."""

LIVE, PENDING, CLOCK, PENDING_COUNT, WEIGHTS, LENGTH = range(6)
"""Rows of ``_Run.state``; columns are devices.

Memory held, and held for pending W alone; end of the last op; number of pending W, of W done; number of ops.
"""


class Policy(NamedTuple):
    """What a list schedule prefers.

    Attributes
    ----------
    launch : int64[microbatches]
        The sequence in which microbatches enter every stage.
    key : int64[2, stages]
        Of the n-th F (row 0) and B or BW (row 1) of a stage the key is ``key + n * step``; smaller keys go first.
    step : int
        See ``key``; 0 makes keys static priorities.
    slack : int
        An op whose key exceeds the device's smallest unfinished key by more than this waits.
    patience : int
        Ticks for which a device stays free for an op with a smaller key.
    caps : int64[2, stages]
        Microbatches between F and B on a stage, before (row 0) and after (row 1) the device's first B.
    weight_gap : float
        W runs in a gap of at least this part of its duration.
    backlog : int64[devices]
        Pending W above which W goes before everything else.
    fused : bool[stages]
        Stages that run BW although they could split it.
    """

    launch: IntArray
    key: IntArray
    step: int
    slack: int
    patience: int
    caps: IntArray
    weight_gap: float
    backlog: IntArray
    fused: BoolArray


class Task(NamedTuple):
    """The parts of an instance that the kernels read, with per-device sums worked out."""

    duration: IntArray
    device_of: IntArray
    stage_offsets: IntArray
    stages: IntArray
    forward_lag: IntArray
    backward_lag: IntArray
    hold: IntArray
    release: IntArray
    peak: IntArray
    highest_peak: IntArray
    whole: IntArray
    room: IntArray
    splittable: BoolArray


class _Run(NamedTuple):
    """The schedule under construction.

    ``done`` counts F and B per stage; the second axis of the arrivals is the position in the launch sequence, -1 is
    not known yet; ``pending`` is a queue of W per device; ``winner`` is a tree over devices whose root, ``winner[1]``,
    has the earliest ``wake``.
    """

    done: IntArray
    state: IntArray
    forward_arrival: IntArray
    backward_arrival: IntArray
    pending: IntArray
    ops: IntArray
    wake: IntArray
    winner: IntArray


def task_of(instance: Instance, room: IntArray | None = None) -> Task:
    """Return what ``list_schedule`` needs to know of an instance, under its own room or a smaller one.

    Raises
    ------
    ValueError
        If a device has less room than ``Instance.smallest_room``.
    """
    room = instance.room if room is None else room
    if (room < instance.smallest_room).any():
        raise ValueError("a device has less room than the smallest under which a plan exists")
    stages_of = [list(stages) for stages in instance.stages_of]
    offsets = np.zeros(instance.devices + 1, dtype=np.int64)
    np.cumsum([len(stages) for stages in stages_of], out=offsets[1:])
    return Task(
        duration=instance.duration,
        device_of=instance.device_of,
        stage_offsets=offsets,
        stages=np.concatenate(stages_of).astype(np.int64),
        forward_lag=instance.forward_lag,
        backward_lag=instance.backward_lag,
        hold=instance.hold,
        release=instance.release,
        peak=instance.peak,
        highest_peak=np.array([instance.peak[stages].max() for stages in stages_of]),
        whole=np.array([instance.hold[F, stages].sum(axis=0).max() for stages in stages_of]),
        room=room,
        splittable=instance.splittable,
    )


def list_schedule(task: Task, policy: Policy) -> Orders:
    """Return the orders of one pass under a policy."""
    run = _pass(task, policy)
    return Orders.of([run.ops[device, :length] for device, length in enumerate(run.state[LENGTH].tolist())])


@kernel
def _pass(task: Task, policy: Policy) -> _Run:
    run = _start(task)
    while True:
        device = run.winner[1]
        now = run.wake[device]
        if now >= NEVER:
            return run
        kind, stage, start = _choose(task, policy, run, device, now)
        if kind < 0:
            _set_wake(run, device, start)
        else:
            _commit(task, policy, run, kind, stage, now, start)


@kernel
def _start(task: Task) -> _Run:
    _, stages, microbatches = task.duration.shape
    devices = len(task.room)
    widest = np.diff(task.stage_offsets).max() * microbatches
    leaves = 1
    while leaves < devices:
        leaves *= 2
    run = _Run(
        np.zeros((2, stages), dtype=np.int64),
        np.zeros((6, devices), dtype=np.int64),
        np.full((stages, microbatches), -1, dtype=np.int64),
        np.full((stages, microbatches), -1, dtype=np.int64),
        np.zeros((devices, widest), dtype=np.int64),
        np.zeros((devices, 3 * widest), dtype=np.int64),
        np.full(leaves, NEVER, dtype=np.int64),
        np.zeros(2 * leaves, dtype=np.int64),
    )
    run.forward_arrival[0] = 0
    run.winner[leaves:] = np.arange(leaves)
    for leaf in range(leaves):
        _set_wake(run, leaf, 0 if leaf < devices else NEVER)
    return run


@kernel
def _set_wake(run: _Run, device: int, time: int) -> None:
    run.wake[device] = time
    node = (len(run.wake) + device) // 2
    while node > 0:
        left, right = run.winner[2 * node], run.winner[2 * node + 1]
        run.winner[node] = left if run.wake[left] <= run.wake[right] else right
        node //= 2


@kernel
def _choose(task: Task, policy: Policy, run: _Run, device: int, now: int) -> tuple[int, int, int]:
    """Return kind, stage and start of the device's next op, or kind -1 and when to choose again."""
    kind, stage, start, soonest = _best(task, policy, run, device, now)
    if run.state[PENDING_COUNT, device] > 0:
        gap = (soonest if kind < 0 else start) - now
        cell = run.pending[device, run.state[WEIGHTS, device]]
        if (
            run.state[PENDING_COUNT, device] > policy.backlog[device]
            or gap >= NEVER // 2
            or gap >= policy.weight_gap * task.duration[W].ravel()[cell]
            or not _fits(task, policy, run, device, kind, stage)
        ):
            return W, cell // task.duration.shape[2], now
    if kind < 0:
        return -1, 0, NEVER if soonest >= NEVER else soonest - policy.patience
    if kind == B and (
        policy.fused[stage] or not task.splittable[stage] or not _fits(task, policy, run, device, B, stage)
    ):
        kind = BW
    return kind, stage, start


@kernel
def _best(task: Task, policy: Policy, run: _Run, device: int, now: int) -> tuple[int, int, int, int]:
    """Return kind (-1 for none), stage and start of the best F or B, and the soonest arrival of one out of reach."""
    microbatches = task.duration.shape[2]
    first, last = task.stage_offsets[device], task.stage_offsets[device + 1]
    oldest = run.done[BACKWARDS, task.stages[first]]
    phase = 1 if run.done[BACKWARDS, task.stages[last - 1]] > 0 else 0
    limit = _key_limit(task, policy, run, device)
    best_kind, best_stage, best_start, best_key, soonest = -1, 0, now, NEVER, NEVER
    for at in range(first, last):
        stage = task.stages[at]
        for kind in (F, B):
            position = run.done[kind, stage]
            if position == microbatches:
                continue
            arrival = run.forward_arrival[stage, position] if kind == F else run.backward_arrival[stage, position]
            key = policy.key[kind, stage] + position * policy.step
            if arrival < 0 or key >= best_key or (key > limit and position != oldest):
                continue
            if kind == F and not _may_enter(task, policy, run, device, stage, phase):
                continue
            if arrival > now + policy.patience:
                soonest = min(soonest, arrival)
                continue
            best_kind, best_stage, best_start, best_key = kind, stage, max(now, arrival), key
    return best_kind, best_stage, best_start, soonest


@kernel
def _key_limit(task: Task, policy: Policy, run: _Run, device: int) -> int:
    """Return the largest key that may run now."""
    if policy.slack >= NEVER:
        return NEVER
    smallest = NEVER
    for at in range(task.stage_offsets[device], task.stage_offsets[device + 1]):
        stage = task.stages[at]
        for kind in (F, B):
            if run.done[kind, stage] < task.duration.shape[2]:
                smallest = min(smallest, policy.key[kind, stage] + run.done[kind, stage] * policy.step)
    return smallest + policy.slack


@kernel
def _may_enter(task: Task, policy: Policy, run: _Run, device: int, stage: int, phase: int) -> bool:
    """Return whether caps and memory, with every pending W done, let the next F of a stage start."""
    position = run.done[FORWARDS, stage]
    if position - run.done[BACKWARDS, stage] >= policy.caps[phase, stage]:
        return False
    first, last = task.stage_offsets[device], task.stage_offsets[device + 1]
    oldest = run.done[BACKWARDS, task.stages[first]]
    if position == oldest and run.done[FORWARDS, task.stages[first]] <= oldest + 1:
        return True
    hold = task.hold[F, stage, policy.launch[position]]
    live = run.state[LIVE, device] - run.state[PENDING, device] + hold + task.highest_peak[device]
    held = hold if position == oldest else 0
    for at in range(first, last):
        if run.done[FORWARDS, task.stages[at]] > oldest and run.done[BACKWARDS, task.stages[at]] <= oldest:
            held += task.hold[F, task.stages[at], policy.launch[oldest]]
    return bool(live + max(0, task.whole[device] - held) <= task.room[device])


@kernel
def _fits(task: Task, policy: Policy, run: _Run, device: int, kind: int, stage: int) -> bool:
    """Return whether memory has room for the next F, B or BW of a stage beside the pending W."""
    if kind < 0:
        return True
    first = task.stages[task.stage_offsets[device]]
    entered, left = run.done[FORWARDS, first], run.done[BACKWARDS, first]
    position = run.done[kind, stage]
    microbatch = policy.launch[position]
    alone = position == left and entered <= left + 1 and run.state[PENDING_COUNT, device] == 0
    peak = task.peak[stage, microbatch] if alone else task.highest_peak[device]
    split = kind == F or (task.splittable[stage] and not policy.fused[stage])
    hold = task.hold[kind, stage, microbatch] if split else 0
    return bool(run.state[LIVE, device] + hold + peak <= task.room[device])


@kernel
def _commit(task: Task, policy: Policy, run: _Run, kind: int, stage: int, now: int, start: int) -> None:
    """Run an op: account for time and memory, tell its consumer, and wake who may act on it."""
    _, stages, microbatches = task.duration.shape
    device = task.device_of[stage]
    state = run.state
    if kind == W:
        microbatch = run.pending[device, state[WEIGHTS, device]] % microbatches
        state[WEIGHTS, device] += 1
        state[PENDING_COUNT, device] -= 1
        state[PENDING, device] -= task.release[W, stage, microbatch]
    else:
        microbatch = policy.launch[run.done[F if kind == F else B, stage]]
    end = start + task.duration[kind, stage, microbatch]
    state[LIVE, device] += task.hold[kind, stage, microbatch] - task.release[kind, stage, microbatch]
    run.ops[device, state[LENGTH, device]] = (kind * stages + stage) * microbatches + microbatch
    state[LENGTH, device] += 1
    if kind == B:
        run.pending[device, state[WEIGHTS, device] + state[PENDING_COUNT, device]] = stage * microbatches + microbatch
        state[PENDING_COUNT, device] += 1
        state[PENDING, device] += task.release[W, stage, microbatch]
    if kind == F:
        _forwarded(task, run, stage, now, end)
    elif kind != W:
        _backwarded(task, run, stage, now, end)
    state[CLOCK, device] = end
    _set_wake(run, device, end)


@kernel
def _forwarded(task: Task, run: _Run, stage: int, now: int, end: int) -> None:
    stages = task.duration.shape[1]
    position = run.done[FORWARDS, stage]
    run.done[FORWARDS, stage] += 1
    if stage == stages - 1:
        run.backward_arrival[stage, position] = end
        return
    run.forward_arrival[stage + 1, position] = end + task.forward_lag[stage]
    _rouse(run, task.device_of[stage + 1], now)


@kernel
def _backwarded(task: Task, run: _Run, stage: int, now: int, end: int) -> None:
    position = run.done[BACKWARDS, stage]
    run.done[BACKWARDS, stage] += 1
    if stage > 0:
        run.backward_arrival[stage - 1, position] = end + task.backward_lag[stage - 1]
        _rouse(run, task.device_of[stage - 1], now)


@kernel
def _rouse(run: _Run, device: int, now: int) -> None:
    """Let a device that has nothing to run choose again."""
    if run.state[CLOCK, device] <= now < run.wake[device]:
        _set_wake(run, device, now)
