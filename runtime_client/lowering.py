"""Lowering: a plan → what each device does, with sends and receives in the order of predicted time.

A plan holds ops only. Here every op whose result another device needs is followed by its send, and the receive joins
the other device's list at the same moment of predicted time. All lists are thus cuts of one global sequence, in which
a send and its receive are neighbours: no two devices can disagree about the order of what passes between them, and
none waits for a transfer that another has not come to. ``transfers.check_transfers`` proves this of the result.
"""

from __future__ import annotations

import heapq
from collections import deque
from collections.abc import Iterator
from typing import NamedTuple

from zbplan.errors import DeadlockError
from zbplan.instance import op_name
from zbplan.placement import devices_of
from zbplan.plan import Plan

GRADIENT = ("B", "BW")
"""The kinds that make the gradient which the stage before needs."""


class Action(NamedTuple):
    """One thing that a device does: an op (F, B, W, BW) or its side of a transfer (SEND_F, RECV_F, SEND_B, RECV_B).

    The stage of SEND is the one whose result leaves, the stage of RECV the one that needs it.
    """

    kind: str
    stage: int
    microbatch: int

    @property
    def is_transfer(self) -> bool:
        """Whether it is one side of a transfer."""
        return self.kind.startswith(("SEND", "RECV"))

    def __str__(self) -> str:
        return op_name(self.kind, self.stage, self.microbatch)


class Transfer(NamedTuple):
    """One tensor's way from a device to another: the two actions, and the devices that take them."""

    send: Action
    receive: Action
    source: int
    target: int


def transfer_of(action: Action, device_of: list[int]) -> Transfer | None:
    """Return the transfer of an op's result; None where it stays on its device or goes nowhere."""
    kind, stage, microbatch = action
    if kind == "F":
        letter, neighbour = "F", stage + 1
    elif kind in GRADIENT:
        letter, neighbour = "B", stage - 1
    else:
        return None
    if not 0 <= neighbour < len(device_of) or device_of[neighbour] == device_of[stage]:
        return None
    send, receive = Action(f"SEND_{letter}", stage, microbatch), Action(f"RECV_{letter}", neighbour, microbatch)
    return Transfer(send, receive, device_of[stage], device_of[neighbour])


def execution_order(plan: Plan) -> list[Action]:
    """Return the ops of all devices in one sequence that one process could run.

    It is sorted by predicted end; among equal ends, every device's order and every dependency hold.

    Raises
    ------
    DeadlockError
        If devices wait for each other for ever. ``zbplan.validate`` finds that and much more beforehand.
    """
    queues = [
        deque(zip(ops.end_ms, map(Action, ops.kind, ops.stage, ops.microbatch), strict=True)) for ops in plan.devices
    ]
    ready = [(queue[0][0], device) for device, queue in enumerate(queues) if queue]
    heapq.heapify(ready)
    waiting: dict[Action, tuple[float, int]] = {}
    done: set[Action] = set()
    sequence: list[Action] = []
    while ready:
        head = heapq.heappop(ready)
        queue = queues[head[1]]
        missing = next((result for result in _inputs(queue[0][1], plan.requires.stages) if result not in done), None)
        if missing is not None:
            waiting[missing] = head
            continue
        _, action = queue.popleft()
        result = _result(action)
        sequence.append(action)
        done.add(result)
        if queue:
            heapq.heappush(ready, (queue[0][0], head[1]))
        if result in waiting:
            heapq.heappush(ready, waiting.pop(result))
    if waiting:
        stuck = [(device, queues[device][0][1], result) for result, (_, device) in waiting.items()]
        raise DeadlockError([f"device {device} at {action} waits for {result}" for device, action, result in stuck])
    return sequence


def _inputs(action: Action, stages: int) -> Iterator[Action]:
    kind, stage, microbatch = action
    if kind == "F" and stage > 0:
        yield Action("F", stage - 1, microbatch)
    if kind in GRADIENT:
        yield Action("F", stage, microbatch)
        if stage + 1 < stages:
            yield Action("B", stage + 1, microbatch)
    if kind == "W":
        yield Action("B", stage, microbatch)


def _result(action: Action) -> Action:
    """Return what others wait for: the gradient of BW is as good as that of B."""
    return action._replace(kind="B") if action.kind == "BW" else action


def lower(plan: Plan, *, forward_only: bool = False) -> list[list[Action]]:
    """Return per device its ops in the plan's order (``forward_only``: its F), with sends and receives between them.

    A send stands right after its op. A receive stands where the sender is predicted to be done: before the op that
    the receiving device runs at that time, so that the transfer can pass during it, and behind everything that passes
    between the two devices earlier.

    Raises
    ------
    DeadlockError
        As ``execution_order``.
    """
    device_of = devices_of(plan.placement)
    actions: list[list[Action]] = [[] for _ in plan.placement]
    for action in execution_order(plan):
        if forward_only and action.kind != "F":
            continue
        actions[device_of[action.stage]].append(action)
        transfer = transfer_of(action, device_of)
        if transfer is not None:
            actions[transfer.source].append(transfer.send)
            actions[transfer.target].append(transfer.receive)
    return actions
