"""The exchange of gradient states between all ranks, in the background, over connections of its own."""

from __future__ import annotations

import secrets
from collections.abc import Sequence
from datetime import timedelta

import torch
import torch.distributed as dist
from torch import Tensor

from runtime_client.agreement import together, transport_device
from runtime_client.gradient_state import NO_STAGE, GradientState
from runtime_client.validation_errors import ValidationError


class Exchange:
    """What every rank says, on its way."""

    def __init__(self, message: Tensor, connections: dist.ProcessGroupGloo) -> None:
        self._connections = connections
        self._messages = [torch.empty_like(message) for _ in range(connections.size())]
        self._message = message  # until the exchange is over, it belongs to the connections
        try:
            self._work = connections.allgather([self._messages], [message])
        except RuntimeError as error:
            raise ValidationError(connections.rank(), connections.size(), error) from error
        self._states: list[GradientState] | None = None

    def messages(self) -> list[Tensor]:
        """Wait for the messages of all ranks, in their order; raises as ``states``."""
        try:
            self._work.wait()
        except RuntimeError as error:
            raise ValidationError(self._connections.rank(), self._connections.size(), error) from error
        return self._messages

    def states(self) -> list[GradientState]:
        """Wait for the gradient states of all ranks, in their order.

        Raises
        ------
        ValidationError
            If a rank is gone, or has not come to this step within the time-out.
        """
        if self._states is None:
            self._states = [GradientState.decode(message) for message in self.messages()]
        return self._states


class Validation:
    """The ranks that must agree on an optimizer step; every rank of the group must make one.

    Attributes
    ----------
    first_held
        The stages of which this rank is the first to hold a part: it counts what all holders have alike.
    """

    def __init__(self, group: dist.ProcessGroup | None, held: Sequence[int], timeout_s: float) -> None:
        self._connections = _connect(group, timeout_s)
        self._width = int(torch.stack(self._all(torch.tensor([len(held)]))).max())
        padded = torch.tensor([*held, *[NO_STAGE] * (self._width - len(held))])
        earlier = self._all(padded)[: self._connections.rank()]
        self.first_held = set(held).difference(*(message.tolist() for message in earlier))

    def begin(self, state: GradientState) -> Exchange:
        """Send this rank's state and ask for all others'; returns at once.

        Raises
        ------
        ValidationError
            If a rank is gone.
        """
        return Exchange(state.encode(self._width), self._connections)

    @property
    def is_first_rank(self) -> bool:
        """Whether this rank speaks for all."""
        return self._connections.rank() == 0

    def _all(self, message: Tensor) -> list[Tensor]:
        return Exchange(message, self._connections).messages()


def _connect(group: dist.ProcessGroup | None, timeout_s: float) -> dist.ProcessGroupGloo:
    """Connect the ranks of a group once more.

    ``torch.distributed.new_group`` would need all ranks of the job, or that each has made as many groups before.
    """
    name = torch.tensor([secrets.randbits(62)], device=transport_device(group))
    rank, ranks = dist.get_rank(group), dist.get_world_size(group)
    with together("connecting for the validation of optimizer steps", group):
        dist.broadcast(name, group=group, group_src=0)
        store = dist.PrefixStore(f"zbplan_validation/{name.item()}", dist.distributed_c10d._get_default_store())
        return dist.ProcessGroupGloo(store, rank, ranks, timeout=timedelta(seconds=timeout_s))
