"""The recorder: measures a running pipeline from inside, on the user's own training steps.

A job starts on any schedule, records a few steps, takes the profile to the planner and goes on with the plan.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Callable, Mapping
from contextlib import nullcontext
from itertools import pairwise
from statistics import median
from typing import Any

import torch.distributed as dist
from pydantic import JsonValue
from torch import Tensor, optim

from profiler.activations import activation_bytes
from profiler.agent import measure_transfers
from profiler.assemble import Measurement, describe, stage_profile
from profiler.backward import Backward, fused, native, stored
from profiler.checks import iteration_checks, stage_checks
from profiler.clock import clock_for
from profiler.doubts import doubts, refuse_or_keep
from profiler.errors import MeasurementError
from profiler.memory import state_of, static_bytes
from profiler.microbatch import Stage
from profiler.model import Splitter
from profiler.progress import Silent
from profiler.ranks import Ranks
from profiler.samples import Steps
from profiler.sandbox import untouched
from profiler.stage import StageFigures, dtype_of
from profiler.taps import LOSS, Tap
from profiler.transfer import Boundary, TensorKind
from zbplan.duration import NEVER, Duration
from zbplan.evidence import Check
from zbplan.placement import Placement, devices_of
from zbplan.profile import EngineMode, Profile

TRANSFER_STEPS = Steps(2, 5)


class Recorder:
    """Times every F, B, W and BW of the next steps of a schedule, from outside the waits for other ranks.

    Every rank of the pipeline makes one, trains ``skip + keep`` steps as ever (``schedule.step(...)``), and then asks
    for the profile together with the others::

        recorder = profiler.Recorder(schedule, splitter=runtime_client.split)
        while not recorder.done:
            train_one_step(schedule)
        found = recorder.profile(optimizer=optimizer)

    Parameters
    ----------
    schedule
        A schedule of ``torch.distributed.pipelining`` or a ``runtime_client.PlanSchedule``.
    splitter
        For a schedule that runs BW: splits the backward of every stage without a ``dw_builder``, for good and bit for
        bit as before, so that B and W can be told apart. None profiles what the schedule runs.
    skip, keep
        Steps whose times are dropped, and steps after them whose ops count.
    """

    def __init__(self, schedule: Any, *, splitter: Splitter | None = None, skip: int = 2, keep: int = 5) -> None:
        self._tap = Tap(schedule)
        self._steps = Steps(skip, keep)
        self._clock = clock_for(self._tap.device)
        self._marks: defaultdict[tuple[str, int], list[tuple[Any, Any]]] = defaultdict(list)
        self._step_marks: list[tuple[Any, Any]] = []
        self._taken = 0
        if splitter is not None:
            self._tap.split(splitter)
        self._tap.open(self._around_step)

    @property
    def done(self) -> bool:
        """Whether all steps are recorded; the schedule is then as it was."""
        return self._taken >= len(self._steps)

    def profile(
        self,
        *,
        name: str = "",
        optimizer: optim.Optimizer | None = None,
        tensor_group: dist.ProcessGroup | None = None,
        environment: Mapping[str, JsonValue] | None = None,
        force: bool = False,
    ) -> Profile:
        """Return the profile of what was recorded, the same on every rank; all ranks of the pipeline must call.

        Memory and transfers are measured now, between two steps: memory on one microbatch of the job's own input
        through each stage (which leaves gradients, buffers and random state as they were), transfers by ping-pong.

        Parameters
        ----------
        name
            Name of the profile.
        optimizer
            The job's; its state counts as static memory. None counts parameters, buffers and gradients.
        tensor_group
            This rank's tensor-parallel group; of what its ranks measured the most counts.
        environment
            What to keep about the job in the profile.
        force
            True keeps a profile that would be refused, and marks it.

        Raises
        ------
        MeasurementError
            On every rank alike, when steps are missing, or samples are too few or too scattered.
        zbplan.errors.RankGoneError
            When a rank does not take part.
        """
        group = self._tap.group
        members = dist.get_process_group_ranks(dist.group.WORLD if group is None else group)
        twins = [dist.get_rank()] if tensor_group is None else dist.get_process_group_ranks(tensor_group)
        here = Ranks(members, twins)
        here.raise_together(self._missing())
        figures, placement = self._all_figures(here, optimizer)
        boundaries = self._boundaries(here, placement)
        transfers = measure_transfers(boundaries, here, TRANSFER_STEPS, self._tap.device, Silent())
        found = doubts(figures, transfers, "stage")
        measurement = Measurement(
            name=name,
            engine_mode=_common_mode(here.gather(self._mode())),
            figures=figures,
            boundary_bytes=[boundary.nbytes for boundary in boundaries],
            transfers=transfers,
            t_comm_ms=None,
            placement=placement,
            forced=refuse_or_keep(found, force=force),
            checks=[*stage_checks(figures), *self._iteration_checks(here)],
            environment={**(environment or {}), **describe(self._tap.device), "turns": "in_situ"},
        )
        return stage_profile(measurement)

    def _around_step(self, step: Callable[[], Any]) -> Any:
        """Run a step: the last one that is skipped gives the examples, those after it are recorded."""
        self._taken += 1
        recorded = self._taken > self._steps.warmup
        tapped = self._tap.capturing() if self._taken == self._steps.warmup else nullcontext()
        with self._tap.listening(self._clock, self._record) if recorded else tapped:
            start = self._clock.mark()
            result = step()
        if recorded:
            self._step_marks.append((start, self._clock.mark()))
        if self.done:
            self._tap.close()
        return result

    def _record(self, kind: str, stage: int, start: Any, end: Any) -> None:
        self._marks[kind, stage].append((start, end))

    def _missing(self) -> MeasurementError | None:
        if self.done:
            return None
        needed = len(self._steps)
        return MeasurementError(f"found {self._taken} steps; needed {needed}: call the schedule's step that often")

    def _mode(self) -> EngineMode:
        splits = [stage for stage in self._tap.stages if self._marks["W", stage.stage_index]]
        if not splits:
            return "fused"
        return "weight_grad_store" if any(stage.dw_builder for stage in splits) else "native_split"

    def _all_figures(self, here: Ranks, optimizer: optim.Optimizer | None) -> tuple[list[StageFigures], Placement]:
        error, mine = None, {}
        try:
            mine = {stage.stage_index: self._figures(stage, optimizer) for stage in self._tap.stages}
        except MeasurementError as failure:
            error = failure
        here.raise_together(error)
        twins = here.gather_twins(mine)
        everywhere = here.gather({stage: StageFigures.worst([twin[stage] for twin in twins]) for stage in mine})
        figures = {stage: figure for part in everywhere for stage, figure in part.items()}
        return [figures[stage] for stage in sorted(figures)], [sorted(part) for part in everywhere]

    def _figures(self, stage: Any, optimizer: optim.Optimizer | None) -> StageFigures:
        example = self._example(stage)
        with untouched(example.module):
            memory = activation_bytes(example, self._tap.device)
        memory["m_static_bytes"] = static_bytes(example.module, state_of(optimizer))
        return StageFigures(self._times(stage), memory, NEVER, dtype_of(example.module))

    def _times(self, stage: Any) -> dict[str, Duration]:
        index = stage.stage_index
        ms = {kind: self._samples_ms(kind, index) for kind in ("F", "B", "W", "BW", LOSS)}
        if ms[LOSS] and stage.is_last:
            ms["F"] = [forward + loss for forward, loss in zip(ms["F"], ms[LOSS], strict=True)]
        durations = {kind: Duration.of(samples) if samples else NEVER for kind, samples in ms.items()}
        b = durations["B"] if ms["B"] else durations["BW"]
        return {"t_f_ms": durations["F"], "t_b_ms": b, "t_w_ms": durations["W"], "t_bw_ms": durations["BW"]}

    def _samples_ms(self, kind: str, stage: int) -> list[float]:
        return [self._clock.elapsed_ms(*pair) for pair in self._marks[kind, stage]]

    def _example(self, stage: Any) -> Stage:
        """Return a stage as it runs, with a microbatch that reached it."""
        example, target, loss = self._tap.examples[stage.stage_index], self._tap.target, self._tap.loss

        def with_target(output: Any) -> Tensor:
            return loss(output, *target.inputs, **target.keywords)

        return Stage(
            stage.stage_index,
            stage.submod,
            example.inputs,
            with_target if stage.is_last else None,
            example.keywords,
            self._backward(stage),
        )

    def _backward(self, stage: Any) -> Backward:
        if not self._marks["W", stage.stage_index]:
            return fused
        if stage.dw_builder is not None:
            return stored(stage.dw_builder)
        return native(stage.submod, first=stage.is_first)

    def _boundaries(self, here: Ranks, placement: Placement) -> list[Boundary]:
        owner = devices_of(placement)
        boundaries = []
        for producer in range(len(owner) - 1):
            example = self._tap.examples.get(producer + 1)
            kinds = None if example is None else tuple(map(TensorKind.of, example.inputs))
            shared = here.share(kinds, source=owner[producer + 1])
            ends = (here.members[owner[stage]] for stage in (producer, producer + 1))
            boundaries.append(Boundary(shared, *ends))
        return boundaries

    def _iteration_checks(self, here: Ranks) -> list[Check]:
        """Check the slowest rank's steps against the busiest rank's ops."""
        steps_ms = [self._clock.elapsed_ms(*pair) for pair in self._step_marks]
        starts = [start for start, _ in self._step_marks]
        iterations_ms = [self._clock.elapsed_ms(*pair) for pair in pairwise(starts)] or steps_ms
        ops_ms = sum(self._clock.elapsed_ms(*pair) for pairs in self._marks.values() for pair in pairs)
        told = here.gather((ops_ms / len(steps_ms), median(steps_ms), median(iterations_ms)))
        busy_ms, step_ms, iteration_ms = (max(column) for column in zip(*told, strict=True))
        return list(iteration_checks(busy_ms, step_ms, iteration_ms))


def _common_mode(modes: list[EngineMode]) -> EngineMode:
    """Return how the pipeline splits; a rank whose stages are frozen splits nothing."""
    return next((mode for mode in modes if mode != "fused"), "fused")
