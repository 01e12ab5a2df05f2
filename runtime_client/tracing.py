"""Tracing: notes when each action of a step really ran, and puts what all ranks noted together."""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from typing import Any, NamedTuple

import torch
import torch.distributed as dist
from torch import Tensor

from runtime_client.agreement import together
from runtime_client.clock import clock_for, offsets_ns
from runtime_client.errors import TraceError
from runtime_client.lowering import Action
from zbplan.plan import Plan
from zbplan.trace import Trace

KEPT_STEPS = 32
"""Steps that are kept until they are collected; older ones go."""

MS_NS = 1e6


class Note(NamedTuple):
    """An action with the marks of its start and end."""

    action: Action
    start: Any
    end: Any


@dataclass
class StepNotes:
    """What one rank noted in one step; times in nanoseconds of its own clock."""

    step: int
    tokens: int | None
    begin: int
    finish: int = 0
    peak_bytes: int | None = None
    notes: list[tuple[Action, int, int]] = field(default_factory=list)


class Tracer:
    """Notes of the latest steps of one rank.

    Parameters
    ----------
    overlap_grad_reduce
        As the schedule has it, for the trace to tell: the last W of a stage then runs for those before it, too.
    """

    def __init__(self, device: torch.device, *, overlap_grad_reduce: bool = False) -> None:
        self._device = device
        self._overlaps = overlap_grad_reduce
        self._clock = clock_for(device)
        self._steps: deque[StepNotes] = deque(maxlen=KEPT_STEPS)
        self._notes: list[Note] = []
        self._count = 0

    @contextmanager
    def step(self, first_input: object, counts: Callable[[], bool]) -> Iterator[None]:
        """Note a step that runs inside the block; one that fails, or does not count at its end, leaves nothing."""
        if self._device.type == "cuda":
            torch.cuda.reset_peak_memory_stats(self._device)
        self._clock.restart()
        self._notes.clear()
        begin = self._clock.mark()
        yield
        finish = self._clock.mark()
        if not counts():
            return
        notes = StepNotes(self._count, _tokens(first_input), self._clock.nanoseconds(begin))
        notes.finish = self._clock.nanoseconds(finish)
        notes.notes = [(note.action, *map(self._clock.nanoseconds, (note.start, note.end))) for note in self._notes]
        if self._device.type == "cuda":
            notes.peak_bytes = torch.cuda.max_memory_allocated(self._device)
        self._steps.append(notes)
        self._count += 1

    @contextmanager
    def during(self, action: Action) -> Iterator[None]:
        """Note an action that runs inside the block."""
        start = self._clock.mark()
        yield
        self._notes.append(Note(action, start, self._clock.mark()))

    def collect(self, plan: Plan, group: dist.ProcessGroup | None) -> Trace:
        """Return the steps noted since the last call, of all ranks: a collective that every rank of the group joins.

        Raises
        ------
        TraceError
            On every rank, if ranks noted other steps, or none.
        RankGoneError
            If a rank does not join within the group's time-out.
        """
        ranks: list[Any] = [None] * dist.get_world_size(group)
        with together("collecting a trace", group):
            clocks = offsets_ns(group)
            dist.all_gather_object(ranks, list(self._steps), group=group)
        self._steps.clear()
        numbers = [[step.step for step in steps] for steps in ranks]
        if not numbers[0] or any(own != numbers[0] for own in numbers):
            raise TraceError(f"found steps {numbers} noted on the ranks; needed the same ones on all, and at least one")
        by_step = [[steps[at] for steps in ranks] for at in range(len(numbers[0]))]
        first = _origin(by_step[0], clocks)
        steps = [_step(notes, clocks, first) for notes in by_step]
        environment = {
            "device": self._device.type,
            "torch": torch.__version__,
            "overlap_grad_reduce": self._overlaps,
        }
        errors_ms = [error / MS_NS for _, error in clocks]
        return Trace.parse(
            {"plan_id": plan.plan_id, "clock_error_ms": errors_ms, "steps": steps, "environment": environment}
        )


def _tokens(first_input: object) -> int | None:
    """Return how many tokens a batch has, where the first input is one of token ids."""
    is_ids = isinstance(first_input, Tensor) and not first_input.is_floating_point() and first_input.numel() > 0
    return first_input.numel() if is_ids else None


def _origin(notes: Sequence[StepNotes], clocks: Sequence[tuple[int, int]]) -> int:
    """Return the earliest begin of a step, by the clock of rank 0."""
    return min(own.begin - ahead for own, (ahead, _) in zip(notes, clocks, strict=True))


def _step(notes: Sequence[StepNotes], clocks: Sequence[tuple[int, int]], first: int) -> dict[str, Any]:
    """Return a step of all devices, its times from its earliest begin on, and that from ``first`` on."""
    origin = _origin(notes, clocks)
    devices = [_device(own, origin + ahead) for own, (ahead, _) in zip(notes, clocks, strict=True)]
    tokens = [own.tokens for own in notes if own.tokens is not None]
    at_ms = (origin - first) / MS_NS
    return {"step": notes[0].step, "at_ms": at_ms, "tokens": tokens[0] if tokens else None, "devices": devices}


def _device(notes: StepNotes, origin: int) -> dict[str, Any]:
    rows = list(_rows(notes.notes))
    return {
        "kind": [action.kind for action, _, _ in rows],
        "stage": [action.stage for action, _, _ in rows],
        "microbatch": [action.microbatch for action, _, _ in rows],
        "start_ms": [(start - origin) / MS_NS for _, start, _ in rows],
        "end_ms": [(end - origin) / MS_NS for _, _, end in rows],
        "begin_ms": (notes.begin - origin) / MS_NS,
        "finish_ms": (notes.finish - origin) / MS_NS,
        "peak_bytes": None if notes.peak_bytes is None else float(notes.peak_bytes),
    }


def _rows(notes: Sequence[tuple[Action, int, int]]) -> Iterator[tuple[Action, int, int]]:
    """Yield the actions; the loss is the end of the F before it, as the profile has it.

    What passes between the two is the last step's validation, no part of F: here it comes behind both, as on all other
    devices it comes before their first backward, outside of any row.
    """
    for (action, start, end), (following, loss_start, loss_end) in zip(notes, [*notes[1:], notes[-1]], strict=True):
        if action.kind != "LOSS":
            loss_ns = loss_end - loss_start if following.kind == "LOSS" else 0
            yield action, start, end + loss_ns
