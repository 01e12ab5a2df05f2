"""SplitBackward: how B and W of a rank's stages run, and when their gradients are averaged."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from functools import partial

import torch.distributed as dist
from torch.distributed.pipelining import PipelineStage

from runtime_client.lowering import Action
from runtime_client.preflight import inspect_first_graph, obstacle, warn_unsplit
from runtime_client.reduction import Reduction, Tail
from runtime_client.weight_grad_store import WeightGradStore, run_uses


class SplitBackward:
    """Gives every stage with W in its order a weight-gradient store, unless it has a ``dw_builder`` of the caller's.

    Parameters
    ----------
    stages
        The stages of this rank.
    ops
        What this rank runs, in order.
    data_parallel_group, overlap_grad_reduce
        As for ``PlanSchedule``.
    """

    def __init__(
        self,
        stages: Sequence[PipelineStage],
        ops: Sequence[Action],
        data_parallel_group: dist.ProcessGroup | None,
        overlap_grad_reduce: bool,
    ) -> None:
        modules = {stage.stage_index: stage.submod for stage in stages}
        self._store = WeightGradStore()
        self._reduction = None if data_parallel_group is None else Reduction([*modules.values()], data_parallel_group)
        self._tail = Tail(ops, modules, self._reduction) if self._reduction and overlap_grad_reduce else None
        self._op = ops[0]
        split = {op.stage for op in ops if op.kind == "W"}
        for stage in stages:
            ours = stage.stage_index in split and isinstance(stage.dw_builder, _Splitter | None)
            inspect_first_graph(stage.stage_index, stage.submod, split=ours and self._split(stage))

    @contextmanager
    def during(self, op: Action) -> Iterator[None]:
        """Run an op or a loss inside the block."""
        self._op = op
        with self._store.recording(op.kind == "B"):
            yield
        if self._tail is not None:
            self._tail.ended(op)

    def finish(self) -> None:
        """Make averages of all gradients, where ranks share the stages."""
        if self._reduction is not None:
            self._reduction.finish()

    def forget(self) -> None:
        """Drop what a step that failed has left."""
        self._store.discard()
        for part in (self._tail, self._reduction):
            if part is not None:
                part.forget()

    def _split(self, stage: PipelineStage) -> bool:
        """Split the backward of a stage; tell whether that is possible."""
        why_not = obstacle(stage.submod)
        if why_not is None:
            self._store.attach(stage.submod)
            stage.dw_builder = _Splitter(self._take_weights)
        else:
            warn_unsplit(stage.stage_index, why_not)
            stage.dw_builder = _Splitter(lambda: _nothing)
        return why_not is None

    def _take_weights(self) -> Callable[[], None]:
        """Return the W of the B that has just run."""
        uses, tail = self._store.take_uses(), self._tail
        return partial(run_uses, uses) if tail is None else lambda: tail.run(self._op, uses)


class _Splitter:
    """A ``dw_builder`` that a ``PlanSchedule`` has set, and a later one may replace."""

    def __init__(self, take: Callable[[], Callable[[], None]]) -> None:
        self._take = take

    def __call__(self) -> Callable[[], None]:
        return self._take()


def _nothing() -> None:
    """Run no weight gradients: B has made them all."""
