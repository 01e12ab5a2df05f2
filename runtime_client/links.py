"""Links: what passes between this rank and others during a step, posted in the order of the plan.

A send keeps its tensor until it is over, and gloo tells that only to whoever waits. So each link waits for an old send
before it posts many more: what is under way does not grow with the number of microbatches. Plans are proven free of
deadlock even if every send blocked at once, so a wait for an old one can only end.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Sequence

import torch.distributed as dist
from torch import Tensor

from runtime_client.errors import TransferShapeError
from runtime_client.lowering import Action

UNDER_WAY = {"SEND_F": 4, "SEND_B": 2}
"""Sends of one stage under way at most. What F made lives until B anyway; what B made lives only to be sent."""

Works = list[dist.Work]
UnderWay = dict[int, Works]
"""Sends by microbatch, in the order in which they were posted."""

Signature = tuple[tuple[tuple[int, ...], object], ...]


class Links:
    """Sends and receives of one rank."""

    def __init__(self) -> None:
        self._sends: dict[tuple[str, int], UnderWay] = defaultdict(dict)
        self._receives: dict[Action, Works] = {}
        self._signatures: dict[tuple[str, int], Signature] = {}

    def send(self, action: Action, ops: Sequence[dist.P2POp]) -> None:
        """Post the tensors of a send.

        Raises
        ------
        TransferShapeError
            If they have other shapes or types than those of the first: the receiver would end in an abort.
        """
        self._check_signature(action, [op.tensor for op in ops])
        posted = self._sends[action.kind, action.stage]
        while len(posted) >= UNDER_WAY[action.kind]:
            _wait(posted.pop(next(iter(posted))))
        # Back ends send memory as it lies, and gloo refuses what has gaps or another order.
        tensors = [op.tensor.contiguous() for op in ops]
        posted[action.microbatch] = [
            dist.isend(tensor, group=op.group, group_dst=op.group_peer) for tensor, op in zip(tensors, ops, strict=True)
        ]

    def receive(self, action: Action, ops: Sequence[dist.P2POp]) -> None:
        """Post the buffers of a receive."""
        self._receives[action] = [dist.irecv(op.tensor, group=op.group, group_src=op.group_peer) for op in ops]

    def arrived(self, action: Action) -> None:
        """Wait until a receive that was posted is over.

        A gradient tells that the tensor which it belongs to was received long ago: the send lets go of that.
        """
        _wait(self._receives.pop(action))
        if action.kind == "RECV_B":
            _wait(self._sends["SEND_F", action.stage].pop(action.microbatch, []))

    def expects(self, action: Action) -> bool:
        """Tell whether a receive was posted and not waited for."""
        return action in self._receives

    def finish(self) -> None:
        """Wait for all sends."""
        for posted in self._sends.values():
            while posted:
                _wait(posted.pop(next(iter(posted))))

    def forget(self) -> None:
        """Drop what a step that failed has left."""
        self._sends.clear()
        self._receives.clear()

    def _check_signature(self, action: Action, tensors: Sequence[Tensor]) -> None:
        found: Signature = tuple((tuple(tensor.shape), tensor.dtype) for tensor in tensors)
        needed = self._signatures.setdefault((action.kind, action.stage), found)
        if found != needed:
            raise TransferShapeError(_text(found), _text(needed))


def _wait(works: Works) -> None:
    for work in works:
        work.wait()


def _text(signature: Signature) -> str:
    return ", ".join(f"{list(shape)} {dtype}" for shape, dtype in signature)
