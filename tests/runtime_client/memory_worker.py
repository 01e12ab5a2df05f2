"""One rank that trains with more and more microbatches, and keeps the most memory that a step took."""

from __future__ import annotations

import json
import sys
from datetime import timedelta
from pathlib import Path

import torch
import torch.distributed as dist
from torch import nn
from torch.distributed.pipelining import PipelineStage

from profiler.memory import StorageMeter
from runtime_client import PlanSchedule
from tests.runtime_client.plans import zb_h1

MICROBATCHES = (4, 8, 32)
WIDTH = 64


def peak_bytes(schedule: PlanSchedule, rank: int, rows: int) -> int:
    x = torch.randn(rows, WIDTH)
    for _ in range(2):  # gradients and shapes stand after the first
        with StorageMeter() as meter:
            schedule.step(*([x] if rank == 0 else []), target=x if rank else None)
            peak = meter.peak_bytes()
    return peak


def main() -> None:
    torch.set_num_threads(1)
    dist.init_process_group("gloo", timeout=timedelta(seconds=60))
    rank = dist.get_rank()
    kept = []
    for microbatches in MICROBATCHES:
        stage = PipelineStage(nn.Sequential(nn.Linear(WIDTH, WIDTH), nn.Tanh()), rank, 2, torch.device("cpu"))
        schedule = PlanSchedule(stage, zb_h1(2, microbatches), nn.functional.mse_loss)
        kept.append(peak_bytes(schedule, rank, 16 * microbatches))
    (Path(sys.argv[1]) / f"{rank}.json").write_text(json.dumps(kept))
    dist.destroy_process_group()


if __name__ == "__main__":
    main()
