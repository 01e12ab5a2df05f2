"""Proof, before the first step, that lists of actions hand every tensor to the op that needs it and never deadlock.

Between two ranks nothing but the order of posting says which tensor is which: both must post the same sequence. The
engine does not check that; a swapped pair trains on wrong numbers without a word.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Sequence
from itertools import zip_longest

from runtime_client.errors import TransferOrderError
from runtime_client.lowering import GRADIENT, Action, Transfer, transfer_of
from zbplan.errors import DeadlockError
from zbplan.placement import Placement, devices_of

Pair = tuple[int, int]


def check_transfers(actions: Sequence[Sequence[Action]], placement: Placement) -> None:
    """Prove lists of actions, one per device, against each other.

    Every transfer is posted once on both sides, after the op that makes its tensor and before the op that needs it;
    any two devices post what passes between them in one order, both directions together (they share one queue on
    NCCL); and all devices reach their last action even if every send and receive blocks until the other side is there.

    Raises
    ------
    TransferOrderError
        Naming the devices, the position, and what stands there.
    DeadlockError
        Naming the action at which each device waits.
    """
    device_of = devices_of(placement)
    known = _transfers(actions, device_of)
    for device, listed in enumerate(actions):
        _check_device(device, listed, known, device_of)
    _check_complete(actions, known)
    _check_pairs(actions, known)
    _check_progress(actions, known)


def _transfers(actions: Sequence[Sequence[Action]], device_of: list[int]) -> dict[Action, Transfer]:
    """Return the transfers that the ops ask for, by either of their actions."""
    known: dict[Action, Transfer] = {}
    for listed in actions:
        for action in listed:
            transfer = transfer_of(action, device_of)
            if transfer is not None:
                known[transfer.send] = known[transfer.receive] = transfer
    return known


def _check_device(device: int, listed: Sequence[Action], known: dict[Action, Transfer], device_of: list[int]) -> None:
    """Each action once, on its device, behind what it needs."""
    done: set[Action] = set()
    for at, action in enumerate(listed):
        where = f"device {device}, position {at}"
        if action in done:
            raise TransferOrderError(f"{where}: found {action} a second time; needed it once")
        if device_of[action.stage] != device:
            raise TransferOrderError(f"{where}: found {action}; needed it on device {device_of[action.stage]}")
        if action.is_transfer and action not in known:
            raise TransferOrderError(f"{where}: found {action}; needed none: both of its ops run on one device")
        for needed in _before(action, known, device_of):
            if not done.intersection(needed):
                raise TransferOrderError(f"{where}: found {action}; needed {needed[0]} before it")
        done.add(action)


def _check_complete(actions: Sequence[Sequence[Action]], known: dict[Action, Transfer]) -> None:
    posted = {action for listed in actions for action in listed}
    for action, transfer in known.items():
        if action not in posted:
            device = transfer.source if action == transfer.send else transfer.target
            raise TransferOrderError(f"device {device}: found no {action}; needed it once")


def _before(action: Action, known: dict[Action, Transfer], device_of: list[int]) -> list[tuple[Action, ...]]:
    """Return what must stand before an action on its device, each with the alternatives that will do."""
    kind, stage, microbatch = action
    if kind == "SEND_F":
        return [(Action("F", stage, microbatch),)]
    if kind == "SEND_B":
        return [tuple(Action(gradient, stage, microbatch) for gradient in GRADIENT)]
    if kind == "F" and stage > 0:
        return [_arrival("F", stage, stage - 1, microbatch, known)]
    if kind in GRADIENT:
        own = (Action("F", stage, microbatch),)
        last = stage + 1 == len(device_of)
        return [own] if last else [own, _arrival("B", stage, stage + 1, microbatch, known)]
    return [(Action("B", stage, microbatch),)] if kind == "W" else []


def _arrival(
    letter: str, stage: int, source: int, microbatch: int, known: dict[Action, Transfer]
) -> tuple[Action, ...]:
    receive = Action(f"RECV_{letter}", stage, microbatch)
    kinds = GRADIENT if letter == "B" else ("F",)
    return (receive,) if receive in known else tuple(Action(kind, source, microbatch) for kind in kinds)


def _check_pairs(actions: Sequence[Sequence[Action]], known: dict[Action, Transfer]) -> None:
    posted: dict[tuple[Pair, int], list[Transfer]] = defaultdict(list)
    for device, listed in enumerate(actions):
        for action in listed:
            if action in known:
                posted[_pair(known[action]), device].append(known[action])
    for low, high in sorted({pair for pair, _ in posted}):
        sides = zip_longest(posted[(low, high), low], posted[(low, high), high])
        for at, (ours, theirs) in enumerate(sides):
            if ours != theirs:
                raise TransferOrderError(
                    f"devices {low} and {high}, transfer {at} between them: found {_name(ours)} on device {low} and "
                    f"{_name(theirs)} on device {high}; needed the same on both"
                )


def _pair(transfer: Transfer) -> Pair:
    return min(transfer.source, transfer.target), max(transfer.source, transfer.target)


def _name(transfer: Transfer | None) -> str:
    return "nothing" if transfer is None else f"{transfer.send} → {transfer.receive}"


def _check_progress(actions: Sequence[Sequence[Action]], known: dict[Action, Transfer]) -> None:
    """Run the lists with transfers at which both sides block until they meet."""
    position = [0] * len(actions)
    at_transfer: dict[int, Transfer] = {}
    runnable = list(range(len(actions)))
    while runnable:
        device = runnable.pop()
        while position[device] < len(actions[device]):
            transfer = known.get(actions[device][position[device]])
            if transfer is not None:
                at_transfer[device] = transfer
                break
            position[device] += 1
        ours = at_transfer.get(device)
        if ours is not None and at_transfer.get(ours.source) == at_transfer.get(ours.target):
            for side in (ours.source, ours.target):
                del at_transfer[side]
                position[side] += 1
                runnable.append(side)
    if at_transfer:
        raise DeadlockError(
            [f"device {device} at {actions[device][position[device]]}" for device in sorted(at_transfer)]
        )
