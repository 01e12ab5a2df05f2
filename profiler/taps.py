"""Taps: where a running schedule can be listened to.

The one module here that knows how schedules of ``torch.distributed.pipelining``, and others made like them, call their
stages: ``forward_one_chunk``, ``backward_one_chunk`` and ``backward_weight_one_chunk`` are called once a receive is
over, so what runs inside them is work.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from typing import Any

import torch
import torch.distributed as dist
from torch import Tensor
from torch.utils._pytree import tree_map

from profiler.clock import Clock
from profiler.errors import MeasurementError
from profiler.model import Splitter

CALLS = ("forward_one_chunk", "backward_one_chunk", "backward_weight_one_chunk")
LOSS = "LOSS"

Record = Callable[[str, int, Any, Any], None]
"""Is told of each op: kind, stage, and the marks of its start and end."""


@dataclass
class Example:
    """One microbatch as it reached a stage, or the loss.

    Attributes
    ----------
    inputs, keywords
        What it was called with; of the loss, without the output.
    """

    inputs: tuple[Any, ...] = ()
    keywords: dict[str, Any] = field(default_factory=dict)


class Tap:
    """The stages of a schedule on this rank, and the ways to listen to it.

    Raises
    ------
    MeasurementError
        For an object that is no such schedule.
    """

    def __init__(self, schedule: Any) -> None:
        engine = getattr(schedule, "_engine", schedule)
        stages = getattr(engine, "_stages", None) or [getattr(engine, "_stage", None)]
        if not all(hasattr(stage, call) for stage in stages for call in CALLS):
            raise MeasurementError(
                f"found a {type(schedule).__name__}; needed a schedule of torch.distributed.pipelining or a "
                "runtime_client.PlanSchedule"
            )
        self.stages: list[Any] = sorted(stages, key=lambda stage: stage.stage_index)
        self.examples: dict[int, Example] = {}
        self.target = Example()
        self._schedule = schedule
        self._engine = engine
        self._split_here: set[int] = set()

    @property
    def device(self) -> torch.device:
        """Where this rank computes."""
        return torch.device(self.stages[0].device)

    @property
    def group(self) -> dist.ProcessGroup | None:
        """The pipeline's processes; None for all."""
        group: dist.ProcessGroup | None = self.stages[0].group
        return group

    @property
    def loss(self) -> Callable[..., Tensor]:
        """What turns an output into the loss."""
        loss: Callable[..., Tensor] = self._engine._loss_fn
        return loss

    def split(self, splitter: Splitter) -> None:
        """Split the backward of every stage that has no ``dw_builder`` and something to train, for good."""
        for stage in self.stages:
            if stage.dw_builder is None and any(parameter.requires_grad for parameter in stage.submod.parameters()):
                stage.dw_builder = splitter(stage.submod)
                self._split_here.add(stage.stage_index)

    def open(self, around_step: Callable[[Callable[[], Any]], Any]) -> None:
        """Hand every step from now on to a function, as a call without arguments."""
        step = self._schedule.step

        def observed(*args: Any, **kwargs: Any) -> Any:
            return around_step(lambda: step(*args, **kwargs))

        self._schedule.step = observed

    def close(self) -> None:
        """Let steps run as before ``open``."""
        self._schedule.__dict__.pop("step", None)

    @contextmanager
    def capturing(self) -> Iterator[None]:
        """Keep an example of what reaches each stage and the loss inside the block."""
        handles = [
            stage.submod.register_forward_pre_hook(self._keeper(stage.stage_index), with_kwargs=True)
            for stage in self.stages
        ]
        loss = self._engine._loss_fn

        def kept(output: Any, *args: Any, **kwargs: Any) -> Tensor:
            self.target = Example(_copied(args), _copied(kwargs))
            result: Tensor = loss(output, *args, **kwargs)
            return result

        self._engine._loss_fn = kept
        try:
            yield
        finally:
            self._engine._loss_fn = loss
            for handle in handles:
                handle.remove()

    @contextmanager
    def listening(self, clock: Clock, record: Record) -> Iterator[None]:
        """Record every op inside the block."""
        for stage in self.stages:
            self._listen(stage, clock, record)
        loss = self._engine._loss_fn
        self._engine._loss_fn = _timed(loss, LOSS, self.stages[-1].stage_index, clock, record)
        try:
            yield
        finally:
            self._engine._loss_fn = loss
            for stage in self.stages:
                for call in CALLS:  # an engine that observes its stages itself has taken them off already
                    stage.__dict__.pop(call, None)

    def _listen(self, stage: Any, clock: Clock, record: Record) -> None:
        index, backward = stage.stage_index, stage.backward_one_chunk
        stage.forward_one_chunk = _timed(stage.forward_one_chunk, "F", index, clock, record)
        stage.backward_weight_one_chunk = _timed(stage.backward_weight_one_chunk, "W", index, clock, record)
        timed = {kind: _timed(backward, kind, index, clock, record) for kind in ("B", "BW")}

        def backward_one_chunk(*args: Any, full_backward: bool = True, **kwargs: Any) -> Any:
            if full_backward and index in self._split_here:
                return _taken_apart(stage, backward, clock, record)(*args, full_backward=True, **kwargs)
            return timed["BW" if full_backward else "B"](*args, full_backward=full_backward, **kwargs)

        stage.backward_one_chunk = backward_one_chunk

    def _keeper(self, stage: int) -> Callable[..., None]:
        def keep(module: Any, args: tuple[Any, ...], kwargs: dict[str, Any]) -> None:
            # The last one stays: a first step may send made-up input ahead to learn its shape.
            self.examples[stage] = Example(_copied(args), _copied(kwargs))

        return keep


def _timed(call: Callable[..., Any], kind: str, stage: int, clock: Clock, record: Record) -> Callable[..., Any]:
    def timed(*args: Any, **kwargs: Any) -> Any:
        start = clock.mark()
        result = call(*args, **kwargs)
        record(kind, stage, start, clock.mark())
        return result

    return timed


def _taken_apart(stage: Any, backward: Callable[..., Any], clock: Clock, record: Record) -> Callable[..., Any]:
    """Return a BW that records B and W: the engine runs the backward, asks for W and runs it at once."""

    def taken_apart(*args: Any, **kwargs: Any) -> Any:
        builder = stage.dw_builder

        def build() -> Callable[..., Any]:
            run_weights = builder()
            record("B", stage.stage_index, start, clock.mark())
            return _timed(run_weights, "W", stage.stage_index, clock, record)

        stage.dw_builder = build
        start = clock.mark()
        try:
            return backward(*args, **kwargs)
        finally:
            stage.dw_builder = builder

    return taken_apart


def _copied(nest: Any) -> Any:
    def copied(leaf: Any) -> Any:
        return leaf.detach().clone().requires_grad_(leaf.requires_grad) if isinstance(leaf, Tensor) else leaf

    return tree_map(copied, nest)
