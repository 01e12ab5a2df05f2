"""The processes that measure together: one per device of the pipeline, or one alone.

Where a device is a tensor-parallel group of processes, each process talks to its pipeline (the processes with its own
place in the other groups) and to its twins (the processes of its own group).
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from typing import Any

import torch.distributed as dist

from profiler.errors import MeasurementError
from zbplan.errors import RankGoneError


class Ranks:
    """What the measuring processes tell each other, on gloo groups apart from the transfers that are measured.

    Parameters
    ----------
    members
        Global ranks of this process's pipeline, device by device.
    twins
        Global ranks of this process's tensor-parallel group.

    Attributes
    ----------
    device, count
        This process's device in the pipeline, and the number of devices.
    """

    def __init__(self, members: Sequence[int], twins: Sequence[int]) -> None:
        self.members = list(members)
        self.me = dist.get_rank()
        self.device, self.count = self.members.index(self.me), len(self.members)
        self._twin_count = len(twins)
        self._talk = _gloo(members)
        self._twins = _gloo(twins) if len(twins) > 1 else None

    def share(self, value: Any, source: int) -> Any:
        """Return on every device the source device's value."""
        box = [value]
        with every_rank():
            dist.broadcast_object_list(box, src=self.members[source], group=self._talk)
        return box[0]

    def gather(self, value: Any) -> list[Any]:
        """Return on every device the values of all."""
        values: list[Any] = [None] * self.count
        with every_rank():
            dist.all_gather_object(values, value, group=self._talk)
        return values

    def gather_twins(self, value: Any) -> list[Any]:
        """Return the values of all processes of this device."""
        if self._twins is None:
            return [value]
        values: list[Any] = [None] * self._twin_count
        with every_rank():
            dist.all_gather_object(values, value, group=self._twins)
        return values

    def meet(self) -> None:
        """Wait for all devices."""
        with every_rank():
            dist.barrier(group=self._talk)

    def raise_together(self, error: MeasurementError | None) -> None:
        """Raise on every process the first device's error, if any has one."""
        pipeline = [message for message in self.gather(None if error is None else str(error)) if message is not None]
        for messages in self.gather_twins(pipeline):
            if messages:
                raise MeasurementError(messages[0], on_every_rank=True) from error


@contextmanager
def every_rank() -> Iterator[None]:
    """Do within the block what takes every rank.

    Raises
    ------
    RankGoneError
        If it fails, most often because another rank is gone.
    """
    try:
        yield
    except RuntimeError as error:
        raise RankGoneError(dist.get_rank(), "measuring with the others", error) from error


@contextmanager
def all_ranks(tensor_parallel: int = 1) -> Iterator[Ranks]:
    """Give the ranks of the default process group, neighbours forming a device; without one, this process alone.

    Raises
    ------
    MeasurementError
        When the processes do not make whole tensor-parallel groups.
    """
    alone = not dist.is_initialized()
    if alone:
        store = dist.HashStore()  # type: ignore[attr-defined]
        dist.init_process_group("gloo", store=store, rank=0, world_size=1)
    try:
        count, me = dist.get_world_size(), dist.get_rank()
        if tensor_parallel < 1 or count % tensor_parallel:
            raise MeasurementError(
                f"found {count} processes for tensor-parallel groups of {tensor_parallel}; needed a multiple of it",
                on_every_rank=True,
            )
        first = me - me % tensor_parallel
        members, twins = range(me % tensor_parallel, count, tensor_parallel), range(first, first + tensor_parallel)
        yield Ranks(members, twins)
    finally:
        if alone:
            dist.destroy_process_group()


def _gloo(ranks: Sequence[int]) -> dist.ProcessGroup:
    """Return a new group of the default one's ranks; all of them must call, and nobody else needs to.

    It goes with the default group, not before: torch names it after its ranks and the number of groups, and one that
    is made under the name of one that was taken down may meet addresses that nobody answers at.
    """
    group: dist.ProcessGroup = dist.new_group(list(ranks), backend="gloo", use_local_synchronization=True)
    return group
