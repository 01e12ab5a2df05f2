"""One rank of ``benchmarks.emulated_stages``: runs every order on stages that sleep.

Usage: ``emulated_stages_worker FOLDER``, where ``runs.json`` lists them; rank 0 writes ``found.json``.
"""

from __future__ import annotations

import json
import sys
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import torch
import torch.distributed as dist
from torch import Tensor
from torch.distributed.pipelining import PipelineStage
from torch.distributed.pipelining.schedules import get_schedule_class

from benchmarks.sleeping import FLOATS, Sleeping
from runtime_client import PlanSchedule
from zbplan.plan import Plan

SKIP, KEEP = 1, 3


def stages_of(plan: Plan) -> list[PipelineStage]:
    """Return this rank's stages, which sleep as long as the plan's profile says."""
    profile, device = plan.planned.profile, torch.device("cpu")
    times = [profile.per_stage(name) for name in ("t_f_ms", "t_b_ms", "t_w_ms")]
    made = []
    for index in plan.placement[dist.get_rank()]:
        module = Sleeping(*(column[index] for column in times))
        made.append(PipelineStage(module, index, plan.requires.stages, device, dw_builder=module.take))
    return made


def schedule_of(plan: Plan, torchs: str | None) -> tuple[Any, list[PipelineStage]]:
    """Return a schedule, and its stages on this rank."""
    stages = stages_of(plan)
    if torchs is None:
        return PlanSchedule(stages, plan, _mean), stages
    kind = get_schedule_class(torchs)
    held = stages if len(stages) > 1 else stages[0]
    return kind(held, plan.requires.microbatches, loss_fn=_mean, scale_grads=False), stages


def iterations_ms(schedule: Any, stages: list[PipelineStage], microbatches: int) -> list[float]:
    """Return how long steps take, from the first rank's start to the last rank's end."""
    batch = torch.zeros(microbatches, FLOATS)
    inputs = [batch] if any(stage.is_first for stage in stages) else []
    target = batch if any(stage.is_last for stage in stages) else None
    spans_ms = [_span_ms(lambda: schedule.step(*inputs, target=target)) for _ in range(SKIP + KEEP)]
    return spans_ms[SKIP:]


def _span_ms(step: Callable[[], Any]) -> float:
    """Return the time of a step; all processes of a machine share one clock."""
    dist.barrier()
    start = time.perf_counter()
    step()
    marks = torch.tensor([-start, time.perf_counter()], dtype=torch.float64)
    dist.all_reduce(marks, dist.ReduceOp.MAX)
    return 1e3 * marks.sum().item()


def _mean(output: Tensor, target: Tensor) -> Tensor:
    return output.mean()


def main(folder: Path) -> None:
    """Run all orders, and write what was found."""
    torch.set_num_threads(1)
    dist.init_process_group("gloo")
    found = {}
    for name, run in json.loads((folder / "runs.json").read_text()).items():
        plan = Plan.parse_json(run["plan"])
        found[name] = iterations_ms(*schedule_of(plan, run["torchs"]), plan.requires.microbatches)
    if dist.get_rank() == 0:
        (folder / "found.json").write_text(json.dumps(found), encoding="utf-8")
    dist.destroy_process_group()


if __name__ == "__main__":
    main(Path(sys.argv[1]))
