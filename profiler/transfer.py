"""Transfers between the ranks that hold neighbouring stages: carrying real tensors, and timing them."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from itertools import pairwise

import torch
import torch.distributed as dist
from torch import Tensor

from profiler.clock import clock_for
from profiler.microbatch import Tensors
from profiler.ranks import every_rank
from profiler.samples import Steps
from zbplan.duration import NEVER, Duration


@dataclass(frozen=True)
class TensorKind:
    """What a receiver must know of a tensor beforehand."""

    shape: tuple[int, ...]
    dtype: torch.dtype
    requires_grad: bool

    @classmethod
    def of(cls, tensor: Tensor) -> TensorKind:
        """Return a tensor's kind."""
        return cls(tuple(tensor.shape), tensor.dtype, tensor.requires_grad)

    def empty(self, device: torch.device) -> Tensor:
        """Return a buffer for such a tensor, itself without gradient."""
        return torch.empty(self.shape, dtype=self.dtype, device=device)

    @property
    def nbytes(self) -> int:
        """Bytes on the wire."""
        return torch.Size(self.shape).numel() * self.dtype.itemsize


@dataclass(frozen=True)
class Boundary:
    """What passes from one stage to the next, and which ranks hold the two.

    Attributes
    ----------
    kinds
        Tensors of one forward transfer; the backward transfer carries those that require a gradient.
    producer, consumer
        Global ranks of the processes with the stage before and the stage after.
    """

    kinds: tuple[TensorKind, ...]
    producer: int
    consumer: int

    @property
    def nbytes(self) -> int:
        """Bytes of one forward transfer."""
        return sum(kind.nbytes for kind in self.kinds)

    def carry(self, tensors: Tensors, rank: int, device: torch.device) -> Tensors:
        """Bring the producer's tensors to the consumer; other ranks get none."""
        if self.producer == self.consumer:
            return tensors if rank == self.producer else ()
        if rank == self.producer:
            _exchange(send=[tensor.detach().contiguous() for tensor in tensors], receive=[], peer=self.consumer)
        if rank != self.consumer:
            return ()
        received = [kind.empty(device) for kind in self.kinds]
        _exchange(send=[], receive=received, peer=self.producer)
        pairs = zip(received, self.kinds, strict=True)
        return tuple(buffer.requires_grad_(kind.requires_grad) for buffer, kind in pairs)


def time_transfers(
    boundary: Boundary, rank: int, steps: Steps, device: torch.device
) -> tuple[Duration, Duration] | None:
    """Return the forward and the backward T_comm of a boundary; None on the consumer, which only answers.

    One clock times all, the producer's: a note there and back takes two latencies of a note, tensors there and a note
    back take T_comm and one, a note there and gradients back likewise.
    """
    note = torch.zeros(1, device=device)
    tensors = [kind.empty(device).zero_() for kind in boundary.kinds]
    gradients = [tensor for tensor, kind in zip(tensors, boundary.kinds, strict=True) if kind.requires_grad]
    trips = (([note], [note]), (tensors, [note]), ([note], gradients or [note]))
    if rank == boundary.consumer:
        for _ in range(len(steps)):
            for there, back in trips:
                _exchange(send=[], receive=there, peer=boundary.producer)
                _exchange(send=back, receive=[], peer=boundary.producer)
        return None
    forward, backward = t_comm(steps, [_round_trips(trips, boundary.consumer, device) for _ in range(len(steps))])
    return forward, backward if gradients else NEVER


def t_comm(steps: Steps, trips_ms: Sequence[Sequence[float]]) -> tuple[Duration, Duration]:
    """Return the forward and the backward T_comm.

    The latency of a note is a constant, to which a busy machine only adds: the quickest of all steady rounds counts.
    Taken round by round, a note that was held up could make a transfer seem to take less than no time.

    Parameters
    ----------
    trips_ms
        Per round the times of the three round trips: note and note, tensors and note, note and gradients.
    """
    notes, there, back = zip(*trips_ms, strict=True)
    latency_ms = min(notes[steps.warmup :]) / 2
    return steps.duration([trip - latency_ms for trip in there]), steps.duration([trip - latency_ms for trip in back])


def _round_trips(trips: Sequence[tuple[list[Tensor], list[Tensor]]], peer: int, device: torch.device) -> list[float]:
    clock = clock_for(device)
    marks = [clock.mark()]
    for there, back in trips:
        _exchange(send=there, receive=[], peer=peer)
        _exchange(send=[], receive=back, peer=peer)
        marks.append(clock.mark())
    return [clock.elapsed_ms(start, end) for start, end in pairwise(marks)]


def _exchange(*, send: Sequence[Tensor], receive: Sequence[Tensor], peer: int) -> None:
    """Send and receive as the runtime does, all tensors of a transfer in one batch."""
    ops = [dist.P2POp(dist.isend, tensor, peer) for tensor in send]
    ops += [dist.P2POp(dist.irecv, tensor, peer) for tensor in receive]
    with every_rank():
        for work in dist.batch_isend_irecv(ops):
            work.wait()
