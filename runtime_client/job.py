"""What a plan requires, held against the job that is to run it."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from typing import Any

import torch
import torch.distributed as dist
from torch import Tensor
from torch.distributed.fsdp import FSDPModule
from torch.distributed.pipelining import PipelineStage

from runtime_client.preflight import refusals
from zbplan.plan import Plan

ENGINE_MODES = ("weight_grad_store", "fused")
"""The ways of splitting the backward that this runtime offers; a plan measured with another predicts other times."""


def job_findings(
    stages: Sequence[PipelineStage], plan: Plan, microbatches: int | None, starts: Sequence[int] | None = None
) -> list[str]:
    """Return what does not fit between a plan and this rank's part of the job, one sentence each."""
    return [*refusals(stages), *_shape_findings(stages, plan, microbatches), *_cut_findings(plan, starts)]


def _shape_findings(stages: Sequence[PipelineStage], plan: Plan, microbatches: int | None) -> Iterator[str]:
    requires, first = plan.requires, stages[0]
    if requires.devices != first.group_size:
        yield f"found {first.group_size} ranks in the pipeline's group; needed {requires.devices}, one per device"
        return
    counts = sorted({stage.num_stages for stage in stages})
    if counts != [requires.stages]:
        yield f"found stages of a pipeline of {' or '.join(map(str, counts))}; needed {requires.stages} stages"
        return
    held, needed = sorted(stage.stage_index for stage in stages), plan.placement[first.group_rank]
    if held != needed:
        yield f"found stages {held}; needed {needed}: build those here, or ask for a plan with this job's placement"
    if microbatches is not None and microbatches != requires.microbatches:
        yield f"found {microbatches} microbatches; needed {requires.microbatches}, or a plan for {microbatches}"
    if requires.engine_mode not in ENGINE_MODES:
        yield f"found a plan for engine mode {requires.engine_mode!r}; needed one of {', '.join(ENGINE_MODES)}"


def _cut_findings(plan: Plan, starts: Sequence[int] | None) -> Iterator[str]:
    needed = plan.requires.starts
    if needed is not None and (starts is None or list(starts) != needed):
        found = "layers that nobody told" if starts is None else f"layers {list(starts)}"
        yield (
            f"found stages that begin with {found}; needed {needed}, as the plan cuts the model: build them so, and "
            "pass starts=plan.requires.starts"
        )


def reduction_findings(
    stages: Sequence[PipelineStage], group: dist.ProcessGroup | None, overlap_grad_reduce: bool
) -> list[str]:
    """Return what keeps gradients from being averaged once."""
    findings = []
    if overlap_grad_reduce and group is None:
        findings.append("found overlap_grad_reduce without a group to reduce over; needed data_parallel_group")
    sharded = [stage.stage_index for stage in stages if isinstance(stage.submod, FSDPModule)]
    if group is not None and sharded:
        findings.append(
            f"found data_parallel_group with stages {sharded} under fully_shard, which averages on its own; needed "
            "one of both"
        )
    return findings


def batch_findings(values: Mapping[str, Any], microbatches: int) -> list[str]:
    """Return what keeps the tensors of a step from being cut in equal microbatches along their first dimension."""
    return [
        f"found {name} with {len(value)} rows; needed a multiple of the plan's {microbatches} microbatches"
        for name, value in values.items()
        if isinstance(value, Tensor) and value.dim() and (len(value) % microbatches or not len(value))
    ]


Signature = dict[str, tuple[tuple[int, ...], torch.dtype]]


def signature_of(values: Mapping[str, Any]) -> Signature:
    """Return shape and type of each tensor of a step."""
    return {name: (tuple(value.shape), value.dtype) for name, value in values.items() if isinstance(value, Tensor)}


def signature_findings(found: Signature, needed: Signature) -> list[str]:
    """Return what is not as in the first step, after whose shapes the buffers of all ranks were made."""
    return [
        f"found {name} of {_shape(found.get(name))}; needed {_shape(needed.get(name))}, as in the first step: "
        "pad to a fixed shape, or build a new PlanSchedule for the new one"
        for name in sorted(found.keys() | needed.keys())
        if found.get(name) != needed.get(name)
    ]


def _shape(entry: tuple[tuple[int, ...], torch.dtype] | None) -> str:
    return "no tensor" if entry is None else f"shape {list(entry[0])} and {entry[1]}"
