"""Clock: when things happen on the device that computes, on one time base for all ranks."""

from __future__ import annotations

import time
from typing import Any, Protocol

import torch
import torch.distributed as dist

from runtime_client.agreement import transport_device

ROUNDS = 16
"""Messages back and forth to compare two clocks; the fastest counts."""


class Clock(Protocol):
    """Marks moments, and tells later when they were."""

    def restart(self) -> None:
        """Begin a step."""

    def mark(self) -> Any:
        """Return a mark of this moment."""

    def nanoseconds(self, mark: Any) -> int:
        """Return when a mark was, by this host's clock."""


class HostClock:
    """For devices whose ops are over when their call returns."""

    def restart(self) -> None:
        """Begin a step: there is nothing to do."""

    def mark(self) -> int:
        """Return this moment."""
        return time.perf_counter_ns()

    def nanoseconds(self, mark: int) -> int:
        """Return when a mark was."""
        return mark


class CudaClock:
    """For ops that only have been queued when their call returns: marks are events on the current stream."""

    def restart(self) -> None:
        """Wait until the device is idle, for one moment that both it and the host know."""
        torch.cuda.synchronize()
        self._base = self.mark()
        self._base.synchronize()
        self._base_ns = time.perf_counter_ns()

    def mark(self) -> torch.cuda.Event:
        """Return an event on the current stream."""
        event = torch.cuda.Event(enable_timing=True)
        event.record()
        return event

    def nanoseconds(self, mark: torch.cuda.Event) -> int:
        """Return when the device came to a mark; waits for it."""
        mark.synchronize()
        return self._base_ns + round(1e6 * self._base.elapsed_time(mark))


def clock_for(device: torch.device) -> Clock:
    """Return the clock of a stage's device."""
    return CudaClock() if device.type == "cuda" else HostClock()


def offsets_ns(group: dist.ProcessGroup | None) -> list[tuple[int, int]]:
    """Return, for every rank of a group, how far its clock is ahead of rank 0's, and how far that may be off.

    A collective. Rank 0 asks each rank for its time; half the way there and back is the error at most.
    """
    rank, size = dist.get_rank(group), dist.get_world_size(group)
    found = torch.zeros(size, 2, dtype=torch.int64)
    for other in range(1, size):
        if rank == 0:
            found[other] = torch.tensor(_ask(other, group))
        elif rank == other:
            _answer(group)
    found = found.to(transport_device(group))
    dist.broadcast(found, group=group, group_src=0)
    return [(ahead, error) for ahead, error in found.tolist()]


def _ask(other: int, group: dist.ProcessGroup | None) -> tuple[int, int]:
    tries = []
    moment = torch.zeros(1, dtype=torch.int64, device=transport_device(group))
    for _ in range(ROUNDS):
        sent = time.perf_counter_ns()
        dist.send(moment, group=group, group_dst=other)
        dist.recv(moment, group=group, group_src=other)
        theirs = int(moment.item())
        received = time.perf_counter_ns()
        tries.append(((received - sent) // 2, theirs - (sent + received) // 2))
    error, ahead = min(tries)
    return ahead, error


def _answer(group: dist.ProcessGroup | None) -> None:
    moment = torch.zeros(1, dtype=torch.int64, device=transport_device(group))
    for _ in range(ROUNDS):
        dist.recv(moment, group=group, group_src=0)
        moment.fill_(time.perf_counter_ns())
        dist.send(moment, group=group, group_dst=0)
