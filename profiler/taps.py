"""Taps: where a running schedule can be listened to.

The one module here that knows how schedules run their stages. Those of ``torch.distributed.pipelining`` call
``forward_one_chunk``, ``backward_one_chunk`` and ``backward_weight_one_chunk`` once a receive is over, so what runs
inside them is work. A ``PlanSchedule`` lets itself be observed, the waits apart from the ops.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager, contextmanager, nullcontext
from dataclasses import dataclass, field
from functools import partial
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
OPS = ("F", "B", "W", "BW", LOSS)

Record = Callable[[str, int, Any, Any], None]
"""Is told of each op: kind, stage, and the marks of its start and end."""

Heard = Callable[[str, Any], AbstractContextManager[None]]
"""Given an op's kind and stage, what it runs inside of."""


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
        self._is_observable = hasattr(schedule, "observed")
        own = ("stages",) if self._is_observable else ("_stages", "_stage")
        found = next((getattr(schedule, name) for name in own if getattr(schedule, name, None)), None)
        stages = found if isinstance(found, list | tuple) else [found]
        if not all(hasattr(stage, call) for stage in stages for call in CALLS):
            raise MeasurementError(
                f"found a {type(schedule).__name__}; needed a schedule of torch.distributed.pipelining or a "
                "runtime_client.PlanSchedule"
            )
        self.stages: list[Any] = sorted(stages, key=lambda stage: stage.stage_index)
        self.examples: dict[int, Example] = {}
        self.target = Example()
        self._schedule = schedule
        self._loss_name = "loss_fn" if self._is_observable else "_loss_fn"
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
        loss: Callable[..., Tensor] = getattr(self._schedule, self._loss_name)
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
        loss = self.loss

        def kept(output: Any, *args: Any, **kwargs: Any) -> Tensor:
            self.target = Example(_copied(args), _copied(kwargs))
            result: Tensor = loss(output, *args, **kwargs)
            return result

        setattr(self._schedule, self._loss_name, kept)
        try:
            yield
        finally:
            setattr(self._schedule, self._loss_name, loss)
            for handle in handles:
                handle.remove()

    @contextmanager
    def listening(self, clock: Clock, record: Record) -> Iterator[None]:
        """Record every op inside the block."""
        heard = partial(self._heard, clock, record)
        with self._schedule.observed(self._observer(heard)) if self._is_observable else self._listen_to_stages(heard):
            yield

    def _observer(self, heard: Heard) -> Callable[[Any], AbstractContextManager[None]]:
        """Return what a schedule that can be observed runs each action inside of: the waits are not heard."""
        stages = {stage.stage_index: stage for stage in self.stages}
        return lambda action: heard(action.kind, stages[action.stage]) if action.kind in OPS else nullcontext()

    @contextmanager
    def _listen_to_stages(self, heard: Heard) -> Iterator[None]:
        """Listen to torch's own schedules, which call the stages' methods and the loss."""
        loss = self.loss
        self._schedule._loss_fn = _inside(loss, partial(heard, LOSS, self.stages[-1]))
        for stage in self.stages:
            stage.forward_one_chunk = _inside(stage.forward_one_chunk, partial(heard, "F", stage))
            stage.backward_weight_one_chunk = _inside(stage.backward_weight_one_chunk, partial(heard, "W", stage))
            backward, b, bw = stage.backward_one_chunk, partial(heard, "B", stage), partial(heard, "BW", stage)
            stage.backward_one_chunk = _backward_inside(backward, b, bw)
        try:
            yield
        finally:
            self._schedule._loss_fn = loss
            for stage in self.stages:
                for call in CALLS:
                    del stage.__dict__[call]

    @contextmanager
    def _heard(self, clock: Clock, record: Record, kind: str, stage: Any) -> Iterator[None]:
        """Record one op; a BW that asks for a W which was split here is two: B until it asks, W from then on."""
        index, builder = stage.stage_index, stage.dw_builder
        start = clock.mark()
        if kind != "BW" or index not in self._split_here:
            yield
            record(kind, index, start, clock.mark())
            return
        asked: list[Any] = []

        def build() -> Callable[..., Any]:
            run_weights: Callable[..., Any] = builder()
            asked.append(clock.mark())
            return run_weights

        stage.dw_builder = build
        try:
            yield
        finally:
            stage.dw_builder = builder
        for middle in asked:
            record("B", index, start, middle)
            record("W", index, middle, clock.mark())

    def _keeper(self, stage: int) -> Callable[..., None]:
        def keep(module: Any, args: tuple[Any, ...], kwargs: dict[str, Any]) -> None:
            # The last one stays: a first step may send made-up input ahead to learn its shape.
            self.examples[stage] = Example(_copied(args), _copied(kwargs))

        return keep


def _inside(call: Callable[..., Any], context: Callable[[], AbstractContextManager[None]]) -> Callable[..., Any]:
    def called(*args: Any, **kwargs: Any) -> Any:
        with context():
            return call(*args, **kwargs)

    return called


def _backward_inside(
    call: Callable[..., Any],
    b: Callable[[], AbstractContextManager[None]],
    bw: Callable[[], AbstractContextManager[None]],
) -> Callable[..., Any]:
    def called(*args: Any, full_backward: bool = True, **kwargs: Any) -> Any:
        with bw() if full_backward else b():
            return call(*args, full_backward=full_backward, **kwargs)

    return called


def _copied(nest: Any) -> Any:
    def copied(leaf: Any) -> Any:
        return leaf.detach().clone().requires_grad_(leaf.requires_grad) if isinstance(leaf, Tensor) else leaf

    return tree_map(copied, nest)
