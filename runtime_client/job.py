"""What a plan requires, held against the job that is to run it."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from typing import Any

from torch import Tensor
from torch.distributed.pipelining import PipelineStage
from torch.nn.parallel import DistributedDataParallel

from zbplan.plan import Plan

ENGINE_MODES = ("weight_grad_store", "fused")
"""The ways of splitting the backward that this runtime offers; a plan measured with another predicts other times."""


def job_findings(stages: Sequence[PipelineStage], plan: Plan, microbatches: int | None) -> list[str]:
    """Return what does not fit between a plan and this rank's part of the job, one sentence each."""
    return [*_stage_findings(stages), *_shape_findings(stages, plan, microbatches)]


def _stage_findings(stages: Sequence[PipelineStage]) -> Iterator[str]:
    for stage in stages:
        if isinstance(stage.submod, DistributedDataParallel):
            yield (
                f"stage {stage.stage_index} is wrapped in DistributedDataParallel, which averages gradients before W "
                "has run; needed the bare module, with FSDP2 or an all-reduce after the step"
            )


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


def batch_findings(values: Mapping[str, Any], microbatches: int) -> list[str]:
    """Return what keeps the tensors of a step from being cut in equal microbatches along their first dimension."""
    return [
        f"found {name} with {len(value)} rows; needed a multiple of the plan's {microbatches} microbatches"
        for name, value in values.items()
        if isinstance(value, Tensor) and value.dim() and (len(value) % microbatches or not len(value))
    ]
