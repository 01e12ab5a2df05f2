"""The processes that measure together: one per device of the pipeline, or one alone."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

import torch.distributed as dist

from profiler.errors import MeasurementError


class Ranks:
    """What the measuring processes tell each other, on a gloo group apart from the transfers that are measured."""

    def __init__(self) -> None:
        self._talk = dist.new_group(backend="gloo")
        self.rank = dist.get_rank()
        self.count = dist.get_world_size()

    def share(self, value: Any, source: int) -> Any:
        """Return on every rank the source's value."""
        box = [value]
        dist.broadcast_object_list(box, src=source, group=self._talk)
        return box[0]

    def gather(self, value: Any) -> list[Any]:
        """Return on every rank the values of all."""
        values: list[Any] = [None] * self.count
        dist.all_gather_object(values, value, group=self._talk)
        return values

    def meet(self) -> None:
        """Wait for all ranks."""
        dist.barrier(group=self._talk)

    def raise_together(self, error: MeasurementError | None) -> None:
        """Raise on every rank the first rank's error, if any has one."""
        for message in self.gather(None if error is None else str(error)):
            if message is not None:
                raise MeasurementError(message, on_every_rank=True) from error

    def leave(self) -> None:
        """Take down the group."""
        dist.destroy_process_group(self._talk)


@contextmanager
def ranks() -> Iterator[Ranks]:
    """Give the ranks of the default process group; without one, this process alone."""
    alone = not dist.is_initialized()
    if alone:
        dist.init_process_group("gloo", store=dist.HashStore(), rank=0, world_size=1)
    here = Ranks()
    try:
        yield here
    finally:
        here.leave()
        if alone:
            dist.destroy_process_group()
