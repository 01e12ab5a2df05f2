"""The paper's own heuristic (section 3.1): a greedy construction under a memory limit, tried over a small grid."""

from __future__ import annotations

from itertools import product
from typing import NamedTuple

import numpy as np

from heuristic.objective import least
from heuristic.shape import one_stage_per_device
from zbplan.instance import BW, B, BoolArray, F, Instance, IntArray, Orders, W
from zbplan.jit import kernel

GRID = tuple(product((True, False), repeat=3))
"""Values of ``overfill``, ``yielding`` and ``eager``, in the sequence in which they are tried."""

CLOCK, FORWARDS, BACKWARDS, WEIGHTS, LIVE, PENDING, WAITED, LENGTH = range(8)
"""Rows of ``_Run.state``; columns are stages.

End of the last op; number of F, of B or BW, and of microbatches without pending W; memory held, and held for pending W
alone; ticks waited since the first F; number of ops.
"""


class _Task(NamedTuple):
    """The parts of an instance that the kernels read, stage by stage."""

    duration: IntArray
    forward_lag: IntArray
    backward_lag: IntArray
    hold: IntArray
    release: IntArray
    peak: IntArray
    highest_peak: IntArray
    room: IntArray
    splittable: BoolArray


class _Run(NamedTuple):
    """The schedule under construction."""

    state: IntArray
    forward_end: IntArray
    backward_end: IntArray
    fused: BoolArray
    ops: IntArray


def zb_greedy(instance: Instance) -> Orders:
    """Return the best orders of the paper's heuristic over its grid (section 3.1), judged by the objective.

    The grid has three switches: ``overfill`` lets the last F of warm-up end after the first B could start; ``yielding``
    lets a stage skip F while it is two ahead of the next stage; ``eager`` runs W also in a gap shorter than T_W
    that would not make the longest wait longer. F waits where memory has no room for it even with every W done, and
    BW runs where B would not fit, so that every feasible limit has a plan.
    """
    one_stage_per_device(instance, "zb_greedy")
    task = _task(instance)
    runs = [_orders(instance, _construct(task, *switches)) for switches in GRID]
    return least(instance, runs)


def _task(instance: Instance) -> _Task:
    return _Task(
        duration=instance.duration,
        forward_lag=instance.forward_lag,
        backward_lag=instance.backward_lag,
        hold=instance.hold,
        release=instance.release,
        peak=instance.peak,
        highest_peak=instance.peak.max(axis=1),
        room=instance.room[instance.device_of],
        splittable=instance.splittable,
    )


def _orders(instance: Instance, run: _Run) -> Orders:
    lengths = run.state[LENGTH]
    return Orders.of([run.ops[stage, : lengths[stage]] for (stage,) in instance.stages_of])


@kernel
def _construct(task: _Task, overfill: bool, yielding: bool, eager: bool) -> _Run:
    """Warm up, then in every round at most one F per stage going down and one B per stage going up."""
    _, stages, microbatches = task.duration.shape
    run = _Run(
        np.zeros((8, stages), dtype=np.int64),
        np.zeros((stages, microbatches), dtype=np.int64),
        np.zeros((stages, microbatches), dtype=np.int64),
        np.zeros((stages, microbatches), dtype=np.bool_),
        np.zeros((stages, 3 * microbatches), dtype=np.int64),
    )
    _warm_up(task, run, overfill)
    for _ in range(1, microbatches):
        wanted = _wanted(task, run, yielding)
        for stage in range(stages):
            if wanted[stage]:
                _forward(task, run, stage, eager)
        for stage in range(stages - 1, -1, -1):
            _backward(task, run, stage, eager)
    for stage in range(stages):
        while run.state[WEIGHTS, stage] < microbatches:
            _weight(task, run, stage)
    return run


@kernel
def _warm_up(task: _Task, run: _Run, overfill: bool) -> None:
    """Run the first F everywhere, as many more as fit before the first B, and the first B everywhere."""
    _, stages, microbatches = task.duration.shape
    for stage in range(stages):
        _put(task, run, F, stage, 0)
    more = np.zeros(stages, dtype=np.int64)
    ready = 0
    for stage in range(stages - 1, -1, -1):
        more[stage], ready = _spare_forwards(task, run, stage, ready, overfill)
    for stage in range(stages):
        if stage > 0:
            while more[stage] > 0 and more[stage] >= more[stage - 1] and 1 + more[stage] < microbatches:
                more[stage] -= 1
            more[stage] = min(more[stage], more[stage - 1])
        for microbatch in range(1, 1 + more[stage]):
            _put(task, run, F, stage, microbatch)
    for stage in range(stages - 1, -1, -1):
        _put(task, run, _backward_kind(task, run, stage), stage, 0)


@kernel
def _spare_forwards(task: _Task, run: _Run, stage: int, ready: int, overfill: bool) -> tuple[int, int]:
    """Return how many F fit before the first gradient arrives, and when the next stage up can have its own.

    ``ready`` is when the gradient leaves the stage below.
    """
    _, stages, microbatches = task.duration.shape
    kind = B if task.splittable[stage] else BW
    clock = run.state[CLOCK, stage]
    if stage == stages - 1:
        return 0, clock + task.duration[kind, stage, 0]
    arrival = ready + task.backward_lag[stage]
    room = task.room[stage] - task.highest_peak[stage] - run.state[LIVE, stage]
    count = 0
    while 1 + count < microbatches and task.hold[F, stage, 1 + count] <= room:
        after = clock + task.duration[F, stage, 1 + count]
        if clock >= arrival or (not overfill and after > arrival):
            break
        clock = after
        room -= task.hold[F, stage, 1 + count]
        count += 1
    return count, max(clock, arrival) + task.duration[kind, stage, 0]


@kernel
def _wanted(task: _Task, run: _Run, yielding: bool) -> BoolArray:
    """Return which stages run F in this round."""
    _, stages, microbatches = task.duration.shape
    forwards, backwards = run.state[FORWARDS], run.state[BACKWARDS]
    wanted: BoolArray = forwards < microbatches
    for stage in range(stages - 1):
        if wanted[stage] and yielding and forwards[stage] >= forwards[stage + 1] + 2:
            wanted[stage] = not _yields(task, run, stage)
    for stage in range(stages - 2, -1, -1):
        wanted[stage] = wanted[stage] and wanted[stage + 1]
    for stage in range(stages):
        if wanted[stage] and forwards[stage] > backwards[stage]:
            has_input = stage == 0 or forwards[stage - 1] + wanted[stage - 1] > forwards[stage]
            wanted[stage] = has_input and _fits(task, run, F, stage, True)
    return wanted


@kernel
def _yields(task: _Task, run: _Run, stage: int) -> bool:
    """Return whether a stage that is two F ahead should rather be free for its next B."""
    state = run.state
    below = stage + 1
    gradient = (
        state[CLOCK, below]
        + task.duration[F, below, state[FORWARDS, below]]
        + task.duration[B if task.splittable[below] else BW, below, state[BACKWARDS, below]]
        + task.backward_lag[stage]
    )
    wait = gradient - state[CLOCK, stage]
    if wait <= 0:
        return True
    work = task.duration[F, stage, state[FORWARDS, stage]] + _weights_before(task, run, stage)
    return bool(work > wait and wait <= state[WAITED].max() - state[WAITED, stage])


@kernel
def _weights_before(task: _Task, run: _Run, stage: int) -> int:
    """Return the ticks of W that must run before the next F fits into memory."""
    state = run.state
    excess = state[LIVE, stage] + task.hold[F, stage, state[FORWARDS, stage]] - task.room[stage]
    excess += task.highest_peak[stage]
    ticks = 0
    for microbatch in range(state[WEIGHTS, stage], state[BACKWARDS, stage]):
        if excess > 0 and not run.fused[stage, microbatch]:
            excess -= task.release[W, stage, microbatch]
            ticks += task.duration[W, stage, microbatch]
    return ticks


@kernel
def _forward(task: _Task, run: _Run, stage: int, eager: bool) -> None:
    """Run the next F of a stage, after the W that memory or an earlier gap asks for."""
    microbatch = run.state[FORWARDS, stage]
    while not _fits(task, run, F, stage, False) and run.state[WEIGHTS, stage] < run.state[BACKWARDS, stage]:
        _weight(task, run, stage)
    if stage > 0:
        _fill(task, run, stage, run.forward_end[stage - 1, microbatch] + task.forward_lag[stage - 1], eager)
    _put(task, run, F, stage, microbatch)


@kernel
def _backward(task: _Task, run: _Run, stage: int, eager: bool) -> None:
    """Run the next B or BW of a stage, after the W that memory or an earlier gap asks for."""
    _, stages, microbatches = task.duration.shape
    state = run.state
    microbatch = state[BACKWARDS, stage]
    while (
        task.splittable[stage]
        and not _fits(task, run, B, stage, False)
        and state[WEIGHTS, stage] < state[BACKWARDS, stage]
    ):
        _weight(task, run, stage)
    if stage < stages - 1:
        _fill(task, run, stage, run.backward_end[stage + 1, microbatch] + task.backward_lag[stage], eager)
    if stage == 0 and state[FORWARDS, stage] == microbatches:
        while state[WEIGHTS, stage] < state[BACKWARDS, stage]:
            _weight(task, run, stage)
    _put(task, run, _backward_kind(task, run, stage), stage, microbatch)


@kernel
def _fill(task: _Task, run: _Run, stage: int, arrival: int, eager: bool) -> None:
    """Run W until the input arrives, and one more that makes it wait if that is the lesser evil."""
    state = run.state
    while state[WEIGHTS, stage] < state[BACKWARDS, stage]:
        gap = arrival - state[CLOCK, stage]
        if gap <= 0:
            return
        long_gap = task.duration[W, stage, state[WEIGHTS, stage]] <= gap
        harmless = gap <= state[WAITED].max() - state[WAITED, stage]
        if not long_gap and harmless and not eager:
            return
        _weight(task, run, stage)


@kernel
def _backward_kind(task: _Task, run: _Run, stage: int) -> int:
    return B if task.splittable[stage] and _fits(task, run, B, stage, False) else BW


@kernel
def _fits(task: _Task, run: _Run, kind: int, stage: int, drained: bool) -> bool:
    """Return whether memory has room for the next op of a kind, at once or once every pending W is done.

    With more than its own microbatch live it leaves room for the highest peak of the stage, so that whatever must
    run later still fits.
    """
    state = run.state
    microbatch = state[FORWARDS if kind == F else BACKWARDS, stage]
    others = state[FORWARDS, stage] - state[BACKWARDS, stage] - (kind != F)
    pending = not drained and state[WEIGHTS, stage] < state[BACKWARDS, stage]
    peak = task.highest_peak[stage] if others > 0 or pending else task.peak[stage, microbatch]
    live = state[LIVE, stage] - (state[PENDING, stage] if drained else 0)
    return bool(live + task.hold[kind, stage, microbatch] + peak <= task.room[stage])


@kernel
def _weight(task: _Task, run: _Run, stage: int) -> None:
    _put(task, run, W, stage, run.state[WEIGHTS, stage])


@kernel
def _put(task: _Task, run: _Run, kind: int, stage: int, microbatch: int) -> None:
    """Append an op and account for its time and memory."""
    _, stages, microbatches = task.duration.shape
    state = run.state
    start = state[CLOCK, stage]
    if kind == F and stage > 0:
        start = max(start, run.forward_end[stage - 1, microbatch] + task.forward_lag[stage - 1])
    elif kind in (B, BW) and stage < stages - 1:
        start = max(start, run.backward_end[stage + 1, microbatch] + task.backward_lag[stage])
    if state[FORWARDS, stage] > 0:
        state[WAITED, stage] += start - state[CLOCK, stage]
    end = start + task.duration[kind, stage, microbatch]
    state[CLOCK, stage] = end
    state[LIVE, stage] += task.hold[kind, stage, microbatch] - task.release[kind, stage, microbatch]
    if kind == F:
        run.forward_end[stage, microbatch] = end
        state[FORWARDS, stage] += 1
    elif kind == W:
        state[PENDING, stage] -= task.release[W, stage, microbatch]
        state[WEIGHTS, stage] += 1
    else:
        run.backward_end[stage, microbatch] = end
        run.fused[stage, microbatch] = kind == BW
        state[PENDING, stage] += 0 if kind == BW else task.release[W, stage, microbatch]
        state[BACKWARDS, stage] += 1
    while state[WEIGHTS, stage] < state[BACKWARDS, stage] and run.fused[stage, state[WEIGHTS, stage]]:
        state[WEIGHTS, stage] += 1
    run.ops[stage, state[LENGTH, stage]] = (kind * stages + stage) * microbatches + microbatch
    state[LENGTH, stage] += 1
