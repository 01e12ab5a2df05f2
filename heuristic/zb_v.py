"""ZB-V: two stages per device in a V, so that all devices hold alike; the paper's greedy construction (section 6)."""

from __future__ import annotations

from itertools import product
from typing import NamedTuple

import numpy as np

from heuristic.objective import least
from heuristic.shape import v_shaped
from zbplan.errors import MethodError
from zbplan.instance import BW, B, BoolArray, F, Instance, IntArray, Orders, W
from zbplan.jit import inlined, kernel

GRID = tuple(product((True, False), repeat=2))
"""Whether W may make F wait, and whether it may make B of the first stage wait, in the sequence tried."""

LONG_AGO, NEVER = -(1 << 60), 1 << 60

DURATION, HOLD, RELEASE, PEAK = range(4)
"""Columns of the table of ops."""

ROOM, CLOCK, LIVE, WAITED, PENDING, WEIGHTS, LENGTH, STUCK = range(8)
"""Columns of the table of devices.

Memory for activations; end of the last op; memory held; ticks waited since the first F; number of W pending and done,
and of ops; whether an op was asked for that had no input or no room.
"""


def zb_v(instance: Instance) -> Orders:
    """Return the best orders of ZB-V's greedy construction (paper, section 6), judged by the objective.

    After a warm-up that fills both stages of every device, each round gives every device one B and one F, on the later
    stage where its input is there, and W in the gaps. It is tried over a grid of two switches, and again with what the
    last try waited on each device, as long as the longest wait shrinks. The paper's limit is ``p · M_B``.

    Raises
    ------
    MethodError
        Unless the placement is a V, or where the warm-up does not fit the memory limit.
    """
    v_shaped(instance, "zb_v")
    runs = [orders for switches in GRID if (orders := _repeated(instance, *switches)) is not None]
    if not runs:
        raise MethodError("zb_v", "its warm-up and one F beside each B do not fit memory_limit")
    return least(instance, runs)


def _repeated(instance: Instance, fill_forward: bool, fill_backward: bool) -> Orders | None:
    """Construct again as long as knowing the last waits makes the longest one shorter; None if nothing fits."""
    ops = np.stack(
        [instance.duration, instance.hold, instance.release, np.broadcast_to(instance.peak, instance.hold.shape)], -1
    )
    devices = np.zeros((instance.devices, 8), dtype=np.int64)
    devices[:, ROOM] = instance.room
    approved = np.full(instance.devices, -1, dtype=np.int64)
    best = None
    while True:
        done, after = _construct(
            ops.reshape(-1, 4),
            devices.copy(),
            instance.forward_lag,
            instance.backward_lag,
            instance.splittable,
            instance.microbatches,
            approved,
            fill_forward,
            fill_backward,
        )
        waited = after[:, WAITED].copy()
        if after[:, STUCK].any() or (best is not None and waited.max() >= approved.max()):
            return best
        best = Orders.of([done[device, :length] for device, length in enumerate(after[:, LENGTH].tolist())])
        approved = waited


class _Run(NamedTuple):
    """The schedule under construction.

    ``given`` and ``end`` are of F (row 0) and of B or BW (row 1) per stage; an end of -1 is not known yet.
    """

    ops: IntArray
    devices: IntArray
    forward_lag: IntArray
    backward_lag: IntArray
    splittable: BoolArray
    done: IntArray
    pending: IntArray
    given: IntArray
    end: IntArray


@kernel
def _construct(
    ops: IntArray,
    devices: IntArray,
    forward_lag: IntArray,
    backward_lag: IntArray,
    splittable: BoolArray,
    microbatches: int,
    approved: IntArray,
    fill_forward: bool,
    fill_backward: bool,
) -> tuple[IntArray, IntArray]:
    """Return the ops of each device, and the table of devices, whose LENGTH says how many."""
    p = len(devices)
    run = _Run(
        ops,
        devices,
        forward_lag,
        backward_lag,
        splittable,
        np.zeros((p, 6 * microbatches), dtype=np.int64),
        np.zeros((p, 2 * microbatches), dtype=np.int64),
        np.zeros((2, 2 * p), dtype=np.int64),
        np.full((2, 2 * p, microbatches), -1, dtype=np.int64),
    )
    _go_down(run)
    _level(run)
    for _ in range(2 * microbatches):
        _backwards(run, approved, fill_backward)
        _forwards(run, approved, fill_forward)
    for device in range(p):
        while devices[device, PENDING] > 0:
            _weight(run, device)
    return run.done, devices


@kernel
def _go_down(run: _Run) -> None:
    """Run the first F of both stages everywhere, and more of the first stages while they wait for the second ones."""
    devices, last = run.devices, len(run.splittable) - 1
    for device in range(len(devices)):
        _put(run, F, device)
    for device in range(len(devices) - 1, -1, -1):
        below = last - device - 1
        target = run.end[F, below, 0] + run.forward_lag[below] if device < len(devices) - 1 else LONG_AGO
        while run.given[F, device] < run.end.shape[2] and not devices[:, STUCK].any():
            op = _next(run, F, device)
            needed = devices[device, LIVE] + run.ops[op, HOLD] * (2 + 2 * device)
            if needed > devices[device, ROOM] or devices[device, CLOCK] + run.ops[op, DURATION] > target:
                break
            for above in range(device + 1):
                _put(run, F, above)
        _put(run, F, last - device)


@kernel
def _level(run: _Run) -> None:
    """Give every device as many F as the one above it, on both stages in turn."""
    count, last = run.given[F], len(run.splittable) - 1
    second = False
    for device in range(1, len(run.devices)):
        above = device - 1
        while not run.devices[:, STUCK].any() and (
            count[device] + count[last - device] < count[above] + count[last - above]
            or count[last - device] <= count[last - above] < run.end.shape[2]
        ):
            for other in range(len(run.devices) - 1, device - 1, -1):
                stage = last - other if second else other
                if count[stage] < run.end.shape[2]:
                    _put(run, F, stage)
            second = not second


@kernel
def _backwards(run: _Run, approved: IntArray, fill: bool) -> None:
    """Run one B on every device: on the first stage where its gradient is there, from below; else on the second."""
    count, last = run.given[B], len(run.splittable) - 1
    devices, m = len(run.devices), run.end.shape[2]
    first = np.zeros(devices, dtype=np.bool_)
    for device in range(devices):
        given = device == devices - 1 or count[device] < count[device + 1]
        first[device] = count[device] < count[last - device] and (given or count[last - device] >= m)
    for device in range(devices - 1, -1, -1):
        if first[device]:
            _fill(run, approved, B, device, True)
            _put(run, B, device)
    for device in range(devices):
        if not first[device]:
            _fill(run, approved, B, last - device, fill)
            _put(run, B, last - device)


@kernel
def _forwards(run: _Run, approved: IntArray, fill: bool) -> None:
    """Run one F on every device: on the second stage where its input is there, else on the first."""
    count, last = run.given[F], len(run.splittable) - 1
    devices, m = len(run.devices), run.end.shape[2]
    for device in range(devices):
        second = count[last - device]
        stage = -1
        if second >= m:
            continue
        if second < count[device] and (device == devices - 1 or second < count[last - device - 1]):
            stage = last - device
        elif count[device] < m and (device == 0 or count[device] < count[device - 1]):
            stage = device
        if stage >= 0:
            while not _fits(run, F, stage) and run.devices[device, PENDING] > 0:
                _weight(run, device)
            _fill(run, approved, F, stage, fill)
            _put(run, F, stage)


@kernel
def _fill(run: _Run, approved: IntArray, kind: int, stage: int, late: bool) -> None:
    """Run W until the next op of a stage can start, and one more that makes it late if the wait would be too long."""
    device = _device(run, stage)
    row = run.devices[device]
    ready = _ready(run, kind, stage)
    while row[PENDING] > 0:
        op = W * run.end[0].size + run.pending[device, row[WEIGHTS]]
        if ready < row[CLOCK] + run.ops[op, DURATION]:
            break
        _weight(run, device)
    allowed = max(run.devices[:, WAITED].max(), approved.max() - approved[device])
    if late and row[PENDING] > 0 and ready - row[CLOCK] > allowed - row[WAITED]:
        _weight(run, device)


@inlined
def _device(run: _Run, stage: int) -> int:
    return min(stage, len(run.splittable) - 1 - stage)


@inlined
def _next(run: _Run, kind: int, stage: int) -> int:
    """Return the next F, or B, of a stage as an op."""
    return int(kind * run.end[0].size + stage * run.end.shape[2] + run.given[kind, stage])


@kernel
def _ready(run: _Run, kind: int, stage: int) -> int:
    """Return when the inputs of the next F or B of a stage are there; NEVER if one is not known yet."""
    position = run.given[kind, stage]
    ready = LONG_AGO
    if kind == F and stage > 0:
        given = run.end[F, stage - 1, position]
        ready = given + run.forward_lag[stage - 1] if given >= 0 else NEVER
    elif kind == B:
        ready = run.end[F, stage, position] if run.end[F, stage, position] >= 0 else NEVER
        if stage < len(run.splittable) - 1:
            given = run.end[B, stage + 1, position]
            ready = max(ready, given + run.backward_lag[stage]) if given >= 0 else NEVER
    return ready


@kernel
def _fits(run: _Run, kind: int, stage: int) -> bool:
    op = _next(run, kind, stage)
    row = run.devices[_device(run, stage)]
    return bool(row[LIVE] + run.ops[op, HOLD] + run.ops[op, PEAK] <= row[ROOM])


@kernel
def _put(run: _Run, kind: int, stage: int) -> None:
    """Run the next F or B of a stage, or note that the device is stuck; BW where B may not run or does not fit."""
    device = _device(run, stage)
    row = run.devices[device]
    ready = _ready(run, kind, stage) if run.given[kind, stage] < run.end.shape[2] else NEVER
    split = kind == F or (run.splittable[stage] and _fits(run, B, stage))
    if ready >= NEVER or row[STUCK] or not (kind == B or _fits(run, F, stage)):
        row[STUCK] = 1
        return
    if run.given[F, device] > 0:
        row[WAITED] += max(0, ready - row[CLOCK])
    row[CLOCK] = max(row[CLOCK], ready)
    op = _next(run, kind, stage)
    _book(run, device, op if split else op + (BW - B) * run.end[0].size)
    run.end[kind, stage, run.given[kind, stage]] = row[CLOCK]
    run.given[kind, stage] += 1
    if kind == B and split:
        run.pending[device, row[WEIGHTS] + row[PENDING]] = op - run.end[0].size
        row[PENDING] += 1


@kernel
def _weight(run: _Run, device: int) -> None:
    """Run the pending W that has waited longest."""
    row = run.devices[device]
    _book(run, device, W * run.end[0].size + run.pending[device, row[WEIGHTS]])
    row[WEIGHTS] += 1
    row[PENDING] -= 1


@kernel
def _book(run: _Run, device: int, op: int) -> None:
    row = run.devices[device]
    run.done[device, row[LENGTH]] = op
    row[LENGTH] += 1
    row[CLOCK] += run.ops[op, DURATION]
    row[LIVE] += run.ops[op, HOLD] - run.ops[op, RELEASE]
