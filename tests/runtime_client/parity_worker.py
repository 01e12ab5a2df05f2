"""One rank of the parity test: trains every case with its plan and keeps losses, weights and gradients."""

from __future__ import annotations

import faulthandler
import sys
from datetime import timedelta
from pathlib import Path
from typing import Any

import torch
import torch.distributed as dist
from torch.distributed.pipelining import PipelineStage

from runtime_client import PlanSchedule
from tests.runtime_client.cases import STEPS, Case, cases, optimizer_of, snapshot


def train(case: Case) -> dict[str, Any]:
    built, count = case.build(), case.plan.requires.stages
    held = {index: built[index] for index in case.plan.placement[dist.get_rank()]}
    stages = [PipelineStage(module, index, count, torch.device("cpu")) for index, module in held.items()]
    schedule = PlanSchedule(stages, case.plan, case.loss_fn, scale_grads=case.mean)
    optimizer = optimizer_of(held.values())
    kept: dict[str, Any] = {"losses": []}
    for step in range(STEPS):
        tokens, target = case.batch(step)
        losses: list[torch.Tensor] = []
        optimizer.zero_grad()
        schedule.step(*([tokens] if 0 in held else []), target=target if count - 1 in held else None, losses=losses)
        optimizer.step()
        kept["losses"] += losses
    tokens, target = case.batch(STEPS)
    evaluated: list[torch.Tensor] = []
    outputs = schedule.eval(
        *([tokens] if 0 in held else []), target=target if count - 1 in held else None, losses=evaluated
    )
    return kept | {"tensors": snapshot(held, optimizer), "evaluated": evaluated, "outputs": outputs}


def main() -> None:
    faulthandler.dump_traceback_later(120, exit=True)  # a rank that hangs says where
    torch.set_num_threads(1)
    dist.init_process_group("gloo", timeout=timedelta(seconds=60))
    kept = {name: train(case) for name, case in cases(dist.get_world_size()).items()}
    torch.save(kept, Path(sys.argv[1]) / f"{dist.get_rank()}.pt")
    dist.destroy_process_group()


if __name__ == "__main__":
    main()
