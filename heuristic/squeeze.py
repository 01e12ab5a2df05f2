"""Squeezing: a repeated building block on V placement, its ramps moved up as far as the block's memory allows.

At equal times a block repeats every six units on a grid of slots, one op per slot (arXiv 2405.15362, sections 3 and 4).
In the steady state every slot is taken; before it, while F comes in, and after it, while B goes out, some are free. Op
by op, in the sequence of the slots, each moves to the first free slot after its inputs in which no device comes to hold
more than the whole block does.
"""

from __future__ import annotations

from dataclasses import replace
from typing import NamedTuple

import numpy as np

from heuristic.block import at_equal_times
from zbplan.instance import BW, UNLIMITED, B, BoolArray, F, Instance, IntArray, Orders, W
from zbplan.jit import inlined, kernel
from zbplan.simulate import simulate

PERIOD = 6

FIRST_F, SECOND_F, SECOND_B, FIRST_B, WEIGHT = range(5)
"""Tracks of a device: F and B on its two stages in the sequence of a microbatch's way, then W of both."""


class _Grid(NamedTuple):
    """Slots of all ops.

    ``slots`` is per device, track FIRST_F to FIRST_B and microbatch, ``weights`` per device and W in the sequence of B;
    ``taken`` and ``live`` are per device and slot: whether an op that stays is there, and what is held after it.
    """

    slots: IntArray
    weights: IntArray
    taken: BoolArray
    live: IntArray


def squeeze(instance: Instance, starts: IntArray) -> Orders:
    """Return the orders of a repeated and squeezed block.

    The block is squeezed twice: with W in the slots that it leaves free; then, closed up, with W wherever it finds
    room, which moves the last ramp again.

    Parameters
    ----------
    starts : int64[devices, 4]
        The slot of the first microbatch's ops on each device, by track.
    """
    slots = starts[:, :, None] + PERIOD * np.arange(instance.microbatches)
    slots, weights = _squeeze(slots, True)
    slots, _ = _squeeze(_closed_up(instance, slots, weights), False)
    return _orders(instance, slots, *_spare_slots(slots))


@kernel
def _squeeze(slots: IntArray, with_weights: bool) -> tuple[IntArray, IntArray]:
    """Return the slots of all ops, moved up; without weights only those of the last ramp, W running where it may."""
    weights, _ = _spare_slots(slots)
    grid = _grid(slots.copy(), weights.copy())
    peak = grid.live.max()
    devices, _, microbatches = slots.shape
    next_op = np.zeros((devices, 5), dtype=np.int64)
    begun, ended = False, False
    for slot in range(grid.taken.shape[1]):
        for device in range(devices):
            for track in range(5 if with_weights else 4):
                op = next_op[device, track]
                if op >= (2 * microbatches if track == WEIGHT else microbatches):
                    continue
                if slot != (weights[device, op] if track == WEIGHT else slots[device, track, op]):
                    continue
                next_op[device, track] += 1
                begun = begun or (track == FIRST_B and device == 0)
                steady = begun and not ended
                ended = ended or (steady and track == FIRST_F and op == microbatches - 1)
                to = slot
                if not steady and (ended or with_weights):
                    to = _first_free(grid, device, track, op, slot, peak, with_weights)
                grid.taken[device, to] = True
    return grid.slots, grid.weights


@kernel
def _grid(slots: IntArray, weights: IntArray) -> _Grid:
    devices, _, microbatches = slots.shape
    end = max(slots.max(), weights.max()) + 1
    live = np.zeros((devices, end), dtype=np.int64)
    for device in range(devices):
        for op in range(microbatches):
            live[device, slots[device, FIRST_F, op] :] += 1
            live[device, slots[device, SECOND_F, op] :] += 1
        for op in range(2 * microbatches):
            live[device, weights[device, op] :] -= 1
    return _Grid(slots, weights, np.zeros((devices, end), dtype=np.bool_), live)


@inlined
def _first_free(grid: _Grid, device: int, track: int, op: int, slot: int, peak: int, with_weights: bool) -> int:
    """Move an op to the first free slot after its inputs where its device holds no more than the peak; return it."""
    for to in range(_latest_input(grid, device, track, op) + 1, slot):
        if grid.taken[device, to]:
            continue
        if with_weights and (track > SECOND_F or grid.live[device, to:slot].max() < peak):
            if track <= SECOND_F:
                grid.live[device, to:slot] += 1
            elif track == WEIGHT:
                grid.live[device, to:slot] -= 1
                grid.weights[device, op] = to
                return to
            grid.slots[device, track, op] = to
            return to
        if not with_weights:
            grid.slots[device, track, op] = to
            if _most_held(grid.slots[device], grid.taken.shape[1]) <= peak:
                return to
            grid.slots[device, track, op] = slot
    return slot


@inlined
def _latest_input(grid: _Grid, device: int, track: int, op: int) -> int:
    """Return the slot after which an op may run: of its inputs, and of the op before it on its track."""
    if track == WEIGHT:
        both = np.sort(grid.slots[device, SECOND_B:].copy().ravel())
        return int(max(both[op], grid.weights[device, op - 1] if op > 0 else -1))
    latest = grid.slots[device, track, op - 1] if op > 0 else -1
    down = track in (FIRST_F, SECOND_B)
    if down and device > 0:
        latest = max(latest, grid.slots[device - 1, track, op])
    if not down and device < len(grid.slots) - 1:
        latest = max(latest, grid.slots[device + 1, track, op])
    if track > FIRST_F:
        latest = max(latest, grid.slots[device, track - 1, op])
    return int(latest)


@kernel
def _tracks(slots: IntArray, end: int) -> IntArray:
    """Return, per slot of one device, the track of the op that is there, or -1."""
    tracks = np.full(end, -1, dtype=np.int64)
    for track in range(4):
        for op in range(slots.shape[1]):
            tracks[slots[track, op]] = track
    return tracks


@kernel
def _most_held(slots: IntArray, end: int) -> int:
    """Return the most that a device holds if W runs as soon as a slot is free."""
    held, most, pending = 0, 0, 0
    for track in _tracks(slots, end):
        if track >= SECOND_B:
            pending += 1
        elif track >= FIRST_F:
            held += 1
        elif pending > 0:
            pending -= 1
            held -= 1
        most = max(most, held)
    return most


@kernel
def _spare_slots(slots: IntArray) -> tuple[IntArray, BoolArray]:
    """Return the free slots that W takes on each device, and for which of them it is W of the first stage.

    W of the second stage goes first.
    """
    devices, _, microbatches = slots.shape
    end = slots.max() + 2 * microbatches + 1
    spare = np.zeros((devices, 2 * microbatches), dtype=np.int64)
    of_first = np.zeros((devices, 2 * microbatches), dtype=np.bool_)
    for device in range(devices):
        count, pending_first, pending_second = 0, 0, 0
        for slot, track in enumerate(_tracks(slots[device], end)):
            if track == SECOND_B:
                pending_second += 1
            elif track == FIRST_B:
                pending_first += 1
            elif track < 0 and pending_first + pending_second > 0:
                spare[device, count] = slot
                of_first[device, count] = pending_second == 0
                pending_first -= pending_second == 0
                pending_second -= pending_second > 0
                count += 1
    return spare, of_first


def _closed_up(instance: Instance, slots: IntArray, weights: IntArray) -> IntArray:
    """Return the slots at which ops start if all that come before them on their devices leave no gap."""
    of_first = np.zeros(weights.shape, dtype=np.bool_)
    for device, tracks in enumerate(slots):
        of_first[device] = np.argsort(tracks[SECOND_B:].ravel()) >= instance.microbatches
    splittable = np.ones(instance.stages, dtype=np.bool_)
    equal = replace(at_equal_times(instance, room=UNLIMITED), splittable=splittable)
    schedule = simulate(equal, _orders(equal, slots, weights, of_first))
    starts = np.zeros((4, slots[:, 0].size * 2), dtype=np.int64)
    kind, cell = np.divmod(schedule.orders.ops, instance.stages * instance.microbatches)
    starts[kind, cell] = schedule.start
    by_stage = starts.reshape(4, instance.stages, instance.microbatches)
    first, second = slice(0, instance.devices), slice(None, instance.devices - 1, -1)
    return np.stack([by_stage[F, first], by_stage[F, second], by_stage[B, second], by_stage[B, first]], axis=1)


def _orders(instance: Instance, slots: IntArray, weights: IntArray, of_first: BoolArray) -> Orders:
    """Return the ops of each device in the sequence of their slots; BW for B and W where a stage cannot split."""
    per_device = []
    for device, (first, second) in enumerate(instance.stages_of):
        back = [B if instance.splittable[stage] else BW for stage in (first, second)]
        at = [*slots[device], weights[device][of_first[device]], weights[device][~of_first[device]]]
        ops = [_codes(instance, *way) for way in ((F, first), (F, second), (back[1], second), (back[0], first))]
        ops += [_codes(instance, W, stage) for stage in (first, second)]
        kept = [track for track in range(6) if track < WEIGHT or back[track - WEIGHT] == B]
        sequence = np.argsort(np.concatenate([at[track] for track in kept]))
        per_device.append(np.concatenate([ops[track] for track in kept])[sequence])
    return Orders.of(per_device)


def _codes(instance: Instance, kind: int, stage: int) -> IntArray:
    """Return an op of every microbatch."""
    return instance.code(kind, stage, 0) + np.arange(instance.microbatches)
