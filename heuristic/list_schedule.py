"""List scheduling: one pass over time that gives every idle device its best op under a policy.

It is the general tool behind every plan that has no name: any placement, any memory limit, any times. A policy only
says what is preferred; that the orders are legal, fit into memory and end is the scheduler's own doing:

- Every stage runs F and B in the policy's launch sequence, so the oldest unfinished microbatch of a device is the same
  on all its stages.
- A device starts F only if, with every pending W done, its microbatches could still finish one after the other, the
  oldest first: each finds room for its F to come, and for the highest peak, among what the ones after it hold. So the
  oldest microbatch can always go on, and nothing can deadlock.
- B runs as BW where splitting it would not fit.

The kernels work on a few wide tables instead of one array per quantity: passing an array between compiled functions
costs more than the few numbers that one decision reads.
"""

from __future__ import annotations

from typing import NamedTuple

import numpy as np
import numpy.typing as npt

from zbplan.instance import BW, B, BoolArray, F, Instance, IntArray, Orders, W
from zbplan.jit import inlined, kernel, lean

FloatArray = npt.NDArray[np.float64]

NEVER = 1 << 62

DURATION, HOLD, RELEASE = range(3)
"""Columns of the table of ops."""

DEVICE, FORWARD_LAG, BACKWARD_LAG, SPLIT, CAP, DONE = 0, 1, 2, 3, 4, 6
"""Columns of the table of stages; CAP has one for each phase, DONE one for F and one for B."""

FIRST, LAST, ROOM, WHOLE, PEAK, BACKLOG, LIVE, DRAINABLE, PENDING, WEIGHTS, LENGTH, CLOCK, WAKE = range(13)
"""Columns of the table of devices.

Range in the list of stages; memory for activations, for one microbatch on all its stages, and the highest peak;
``Policy.backlog``; memory held, and held for pending W; number of pending W, of W done, of ops; end of the last op;
time of the next choice.
"""


class Policy(NamedTuple):
    """What a list schedule prefers.

    Attributes
    ----------
    launch : int64[microbatches]
        The sequence in which microbatches enter every stage.
    key : int64[2 or 3, stages, microbatches]
        Of the n-th F (row 0), B or BW (row 1) and W (row 2) of each stage; smaller keys go first. Without keys, W runs
        only where the other rules let it.
    slack : int or int64[3]
        An op whose key exceeds the device's smallest unfinished key by more than this waits: before the device's first
        B, after it, and once no F is left.
    patience : int
        Ticks for which a device stays free for an op with a smaller key.
    caps : int64[stages, 2]
        Microbatches between F and B on a stage, before (column 0) and after (column 1) the device's first B.
    weight_gap : float or float64[devices]
        W runs in a gap of at least this part of its duration; never for the sake of a gap if infinite.
    backlog : int64[devices]
        Pending W above which W goes before everything else.
    split : bool[stages]
        False where a stage runs BW although it could split it.
    """

    launch: IntArray
    key: IntArray
    slack: IntArray | int
    patience: int
    caps: IntArray
    weight_gap: FloatArray | float
    backlog: IntArray
    split: BoolArray


class Task(NamedTuple):
    """An instance as the kernels read it: tables of ops, stages and devices, and each device's stages in one list."""

    ops: IntArray
    stages: IntArray
    devices: IntArray
    held: IntArray
    peak: IntArray
    splittable: BoolArray


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
    stages = np.zeros((instance.stages, 8), dtype=np.int64)
    stages[:, DEVICE] = instance.device_of
    stages[:-1, FORWARD_LAG], stages[:-1, BACKWARD_LAG] = instance.forward_lag, instance.backward_lag
    devices = np.zeros((instance.devices, 13), dtype=np.int64)
    devices[:, LAST] = np.cumsum([len(held) for held in instance.stages_of])
    devices[1:, FIRST] = devices[:-1, LAST]
    devices[:, ROOM] = room
    devices[:, WHOLE] = [instance.hold[F, list(held)].sum(axis=0).max() for held in instance.stages_of]
    devices[:, PEAK] = [instance.peak[list(held)].max() for held in instance.stages_of]
    return Task(
        ops=np.stack([instance.duration, instance.hold, instance.release], axis=-1).reshape(-1, 3),
        stages=stages,
        devices=devices,
        held=np.concatenate([np.array(held, dtype=np.int64) for held in instance.stages_of]),
        peak=instance.peak.ravel(),
        splittable=instance.splittable,
    )


def list_schedule(task: Task, policy: Policy) -> Orders:
    """Return the orders of one pass under a policy."""
    ops, offsets = _pass(
        task.ops,
        _stage_table(task, policy),
        _device_table(task, policy),
        task.held,
        task.peak,
        policy.launch,
        policy.key if len(policy.key) > W else np.concatenate([policy.key, np.full_like(policy.key[:1], NEVER)]),
        np.full(3, policy.slack, dtype=np.int64),
        policy.patience,
        np.full(len(task.devices), policy.weight_gap, dtype=np.float64),
    )
    return Orders(ops, offsets)


def _stage_table(task: Task, policy: Policy) -> IntArray:
    table = task.stages.copy()
    table[:, SPLIT] = task.splittable & policy.split
    table[:, CAP : CAP + 2] = policy.caps
    return table


def _device_table(task: Task, policy: Policy) -> IntArray:
    table = task.devices.copy()
    table[:, BACKLOG] = policy.backlog
    return table


@kernel
def _pass(
    ops: IntArray,
    stages: IntArray,
    devices: IntArray,
    held: IntArray,
    peak: IntArray,
    launch: IntArray,
    keys: IntArray,
    slack: IntArray,
    patience: int,
    weight_gap: FloatArray,
) -> tuple[IntArray, IntArray]:
    """Return the ops that devices run, one device after the other, and where those of each begin and end."""
    m = len(launch)
    widest = (devices[:, LAST] - devices[:, FIRST]).max() * m
    pending = np.zeros((len(devices), widest), dtype=np.int64)
    done = np.zeros((len(devices), 3 * widest), dtype=np.int64)
    arrival = np.full((2, len(stages), m), -1, dtype=np.int64)
    arrival[F, 0] = 0
    winner = _tournament(len(devices))
    _fill(ops, stages, devices, held, peak, launch, keys, slack, patience, weight_gap, pending, done, arrival, winner)
    offsets = np.zeros(len(devices) + 1, dtype=np.int64)
    offsets[1:] = np.cumsum(devices[:, LENGTH])
    ran = np.empty(offsets[-1], dtype=np.int64)
    for device in range(len(devices)):
        ran[offsets[device] : offsets[device + 1]] = done[device, : devices[device, LENGTH]]
    return ran, offsets


@lean
def _fill(
    ops: IntArray,
    stages: IntArray,
    devices: IntArray,
    held: IntArray,
    peak: IntArray,
    launch: IntArray,
    keys: IntArray,
    slack: IntArray,
    patience: int,
    weight_gap: FloatArray,
    pending: IntArray,
    done: IntArray,
    arrival: IntArray,
    winner: IntArray,
) -> None:
    """Let the device that wakes first run an op or sleep again, until nobody wakes."""
    while True:
        device = winner[1]
        now = devices[device, WAKE] if device >= 0 else NEVER
        if now >= NEVER:
            return
        kind, stage, start, soonest, key = _best(
            ops, stages, devices, held, launch, keys, arrival, device, now, slack, patience
        )
        gap = (soonest if kind < 0 else start) - now
        fits = kind < 0 or _fits(ops, stages, devices, held, peak, launch, device, kind, stage)
        if devices[device, PENDING] > 0 and (
            not fits or _weight_is_due(ops, devices, launch, keys, pending, device, key, gap, weight_gap[device])
        ):
            _weight(ops, devices, launch, pending, done, len(peak), device, now)
        elif kind < 0:
            devices[device, WAKE] = NEVER if soonest >= NEVER else soonest - patience
        else:
            kind = BW if kind == B and not (fits and stages[stage, SPLIT]) else kind
            _run(ops, stages, devices, launch, pending, done, kind, stage, start)
            _tell(stages, devices, arrival, winner, kind, stage, now)
        _replay(devices, winner, device)


@inlined
def _tournament(devices: int) -> IntArray:
    """Return a tree whose root, at 1, is the device with the earliest WAKE; all wake at 0. -1 stands for none."""
    leaves = 1
    while leaves < devices:
        leaves *= 2
    winner = np.full(2 * leaves, -1, dtype=np.int64)
    for device in range(devices):
        winner[leaves + device] = device
    for node in range(leaves - 1, 0, -1):
        winner[node] = winner[2 * node]
    return winner


@inlined
def _replay(devices: IntArray, winner: IntArray, device: int) -> None:
    """Let a device whose WAKE has changed play its way up to the root again."""
    node = (len(winner) // 2 + device) // 2
    while node > 0:
        left, right = winner[2 * node], winner[2 * node + 1]
        later = right >= 0 and devices[right, WAKE] < devices[left, WAKE]
        winner[node] = right if later else left
        node //= 2


@inlined
def _best(
    ops: IntArray,
    stages: IntArray,
    devices: IntArray,
    held: IntArray,
    launch: IntArray,
    keys: IntArray,
    arrival: IntArray,
    device: int,
    now: int,
    slack: IntArray,
    patience: int,
) -> tuple[int, int, int, int, int]:
    """Return kind (-1 for none), stage and start of the best F or B, the soonest arrival out of reach, and a key.

    The key is that of the best op or, where none can run, the smallest one still to come; NEVER when all are done.
    """
    first, last = devices[device, FIRST], devices[device, LAST]
    oldest = stages[held[first], DONE + B]
    phase = 1 if stages[held[last - 1], DONE + B] > 0 else 0
    smallest = _smallest_key(stages, held, keys, first, last)
    allowed = slack[2 if stages[held[last - 1], DONE + F] == len(launch) else phase]
    limit = smallest + min(allowed, NEVER - 1 - smallest)
    best_kind, best_stage, best_start, best_key, soonest = -1, 0, now, NEVER, NEVER
    for at in range(first, last):
        stage = held[at]
        for kind in (F, B):
            position = stages[stage, DONE + kind]
            if position == len(launch):
                continue
            ready = arrival[kind, stage, position]
            key = keys[kind, stage, position]
            if ready < 0 or key >= best_key or (key > limit and position != oldest):
                continue
            if kind == F and not _may_enter(ops, stages, devices, held, launch, device, stage, phase):
                continue
            if ready > now + patience:
                soonest = min(soonest, ready)
                continue
            best_kind, best_stage, best_start, best_key = kind, stage, max(now, ready), key
    return best_kind, best_stage, best_start, soonest, smallest if best_kind < 0 else best_key


@inlined
def _smallest_key(stages: IntArray, held: IntArray, keys: IntArray, first: int, last: int) -> int:
    """Return the smallest key of an F or B that a device has not run."""
    smallest = NEVER
    for at in range(first, last):
        for kind in (F, B):
            position = stages[held[at], DONE + kind]
            if position < keys.shape[2]:
                smallest = min(smallest, keys[kind, held[at], position])
    return smallest


@inlined
def _may_enter(
    ops: IntArray,
    stages: IntArray,
    devices: IntArray,
    held: IntArray,
    launch: IntArray,
    device: int,
    stage: int,
    phase: int,
) -> bool:
    """Return whether caps and memory, with every pending W done, let the next F of a stage start.

    Once the older microbatches give back what one needs on all stages, the younger ones are safe too.
    """
    position = stages[stage, DONE + F]
    if position - stages[stage, DONE + B] >= stages[stage, CAP + phase]:
        return False
    first, last = devices[device, FIRST], devices[device, LAST]
    oldest = stages[held[first], DONE + B]
    if position == oldest and stages[held[first], DONE + F] <= oldest + 1:
        return True
    hold = ops[stage * len(launch) + launch[position], HOLD]
    live = devices[device, LIVE] - devices[device, DRAINABLE] + hold + devices[device, PEAK]
    released = 0
    for of in range(oldest, max(position, stages[held[first], DONE + F] - 1) + 1):
        holds, needs = 0, 0
        for at in range(first, last):
            units = ops[held[at] * len(launch) + launch[of], HOLD]
            if stages[held[at], DONE + F] + (held[at] == stage) <= of:
                needs += units
            elif stages[held[at], DONE + B] <= of:
                holds += units
        if live - released + needs > devices[device, ROOM]:
            return False
        released += holds
        if released >= devices[device, WHOLE]:
            break
    return True


@inlined
def _fits(
    ops: IntArray,
    stages: IntArray,
    devices: IntArray,
    held: IntArray,
    peak: IntArray,
    launch: IntArray,
    device: int,
    kind: int,
    stage: int,
) -> bool:
    """Return whether memory has room for the next F, B or BW of a stage beside the pending W."""
    first = held[devices[device, FIRST]]
    position = stages[stage, DONE + kind]
    cell = stage * len(launch) + launch[position]
    entered, left = stages[first, DONE + F], stages[first, DONE + B]
    alone = position == left and entered <= left + 1 and devices[device, PENDING] == 0
    needed = peak[cell] if alone else devices[device, PEAK]
    if kind == F or stages[stage, SPLIT]:
        needed += ops[kind * len(peak) + cell, HOLD]
    return bool(devices[device, LIVE] + needed <= devices[device, ROOM])


@inlined
def _weight_is_due(
    ops: IntArray,
    devices: IntArray,
    launch: IntArray,
    keys: IntArray,
    pending: IntArray,
    device: int,
    key: int,
    gap: int,
    weight_gap: float,
) -> bool:
    """Return whether the next pending W should run now, given the key to beat and the gap until something can run."""
    stage, position = divmod(pending[device, devices[device, WEIGHTS]], len(launch))
    first = key >= NEVER or keys[W, stage, position] < key or devices[device, PENDING] > devices[device, BACKLOG]
    op = (W * keys.shape[1] + stage) * len(launch) + launch[position]
    return bool(first or (weight_gap < np.inf and gap >= weight_gap * ops[op, DURATION]))


@inlined
def _weight(
    ops: IntArray,
    devices: IntArray,
    launch: IntArray,
    pending: IntArray,
    done: IntArray,
    cells: int,
    device: int,
    now: int,
) -> None:
    """Run the pending W that has waited longest."""
    stage, position = divmod(pending[device, devices[device, WEIGHTS]], len(launch))
    op = W * cells + stage * len(launch) + launch[position]
    devices[device, WEIGHTS] += 1
    devices[device, PENDING] -= 1
    devices[device, DRAINABLE] -= ops[op, RELEASE]
    _book(ops, devices, done, device, op, now)


@inlined
def _run(
    ops: IntArray,
    stages: IntArray,
    devices: IntArray,
    launch: IntArray,
    pending: IntArray,
    done: IntArray,
    kind: int,
    stage: int,
    start: int,
) -> None:
    """Run the next F, B or BW of a stage."""
    device = stages[stage, DEVICE]
    cells = len(stages) * len(launch)
    column = DONE + (F if kind == F else B)
    position = stages[stage, column]
    cell = stage * len(launch) + launch[position]
    stages[stage, column] += 1
    if kind == B:
        pending[device, devices[device, WEIGHTS] + devices[device, PENDING]] = stage * len(launch) + position
        devices[device, PENDING] += 1
        devices[device, DRAINABLE] += ops[W * cells + cell, RELEASE]
    _book(ops, devices, done, device, kind * cells + cell, start)


@inlined
def _book(ops: IntArray, devices: IntArray, done: IntArray, device: int, op: int, start: int) -> None:
    """Write an op down and account for its time and memory."""
    done[device, devices[device, LENGTH]] = op
    devices[device, LENGTH] += 1
    devices[device, LIVE] += ops[op, HOLD] - ops[op, RELEASE]
    devices[device, CLOCK] = devices[device, WAKE] = start + ops[op, DURATION]


@inlined
def _tell(
    stages: IntArray, devices: IntArray, arrival: IntArray, winner: IntArray, kind: int, stage: int, now: int
) -> None:
    """Tell the consumer of the op that a stage has just been given when its input arrives; wake it if it idles."""
    end = devices[stages[stage, DEVICE], CLOCK]
    if kind == F and stage == len(stages) - 1:
        arrival[B, stage, stages[stage, DONE + F] - 1] = end
        return
    if kind == F:
        consumer = stage + 1
        arrival[F, consumer, stages[stage, DONE + F] - 1] = end + stages[stage, FORWARD_LAG]
    elif stage > 0:
        consumer = stage - 1
        arrival[B, consumer, stages[stage, DONE + B] - 1] = end + stages[consumer, BACKWARD_LAG]
    else:
        return
    other = stages[consumer, DEVICE]
    if devices[other, CLOCK] <= now < devices[other, WAKE]:
        devices[other, WAKE] = now
        _replay(devices, winner, other)
