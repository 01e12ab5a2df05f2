"""One rank that trains with more and more microbatches, and then by plans of its own profile.

It keeps the most memory that a step took, and of the plans what they predict.
"""

from __future__ import annotations

import json
import sys
from datetime import timedelta
from pathlib import Path

import torch
import torch.distributed as dist
from torch import nn
from torch.distributed.pipelining import PipelineStage

import heuristic
from profiler import Options, gpt, measure
from profiler.memory import StorageMeter
from profiler.models import Transformer
from runtime_client import PlanSchedule, split, transfer_memory
from tests.runtime_client.plans import zb_h1
from zbplan.problem import Problem

MICROBATCHES = (4, 8, 32)
WIDTH = 64
SMALL = Transformer(name="small", blocks=2, hidden=64, heads=4, sequence=32, microbatch_size=4, vocabulary=96)


def peak_bytes(schedule: PlanSchedule, rank: int, rows: int) -> int:
    x = torch.randn(rows, WIDTH)
    for _ in range(2):  # gradients and shapes stand after the first
        with StorageMeter() as meter:
            schedule.step(*([x] if rank == 0 else []), target=x if rank else None)
            peak = meter.peak_bytes()
    return peak


def against_plans(rank: int) -> dict[str, tuple[float, float]]:
    """Return the most memory of a step beside weights and gradients, measured and predicted, by method."""
    model = gpt.staged_model(SMALL, 2)
    profile = measure(model, Options(splitter=split, steady=1, force=True))
    static = profile.per_stage("m_static_bytes")[rank]
    found = {}
    for method in ("1f1b", "zb_h1", "zb_h2"):
        problem = {"profile": profile.model_dump(), "devices": 2, "microbatches": 6, "method": method}
        plan = heuristic.construct(Problem.parse(problem))
        schedule = PlanSchedule(PipelineStage(model.build(rank), rank, 2, torch.device("cpu")), plan, gpt.loss)
        tokens = gpt.layered_model(SMALL).microbatch[0].repeat(6, 1)
        for _ in range(2):  # gradients and shapes stand after the first
            with StorageMeter() as meter:
                schedule.step(*([tokens] if rank == 0 else []), target=tokens)
                measured = meter.peak_bytes()
        found[method] = (measured, transfer_memory.peak_bytes(plan)[rank] - static)
    return found


def main() -> None:
    torch.set_num_threads(1)
    dist.init_process_group("gloo", timeout=timedelta(seconds=60))
    rank = dist.get_rank()
    kept = []
    for microbatches in MICROBATCHES:
        stage = PipelineStage(nn.Sequential(nn.Linear(WIDTH, WIDTH), nn.Tanh()), rank, 2, torch.device("cpu"))
        schedule = PlanSchedule(stage, zb_h1(2, microbatches), nn.functional.mse_loss)
        kept.append(peak_bytes(schedule, rank, 16 * microbatches))
    found = {"by_microbatches": kept, "against_plans": against_plans(rank)}
    (Path(sys.argv[1]) / f"{rank}.json").write_text(json.dumps(found))
    dist.destroy_process_group()


if __name__ == "__main__":
    main()
