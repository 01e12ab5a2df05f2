"""One of three ranks, of which the middle one comes to an end around its third optimizer step."""

from __future__ import annotations

import os
import signal
import sys
import time
from datetime import timedelta
from pathlib import Path

import torch
import torch.distributed as dist
from torch.distributed.pipelining import PipelineStage

from runtime_client import PlanSchedule
from runtime_client.post_validated import PostValidatedOptimizer
from tests.runtime_client.models import batch, mean_loss, text_stages
from tests.runtime_client.plans import zb_h1
from tests.runtime_client.post_validated_trials import adamw

RANKS = 3
LAST_STEP = 2
SHORT_S = 2


def die() -> None:
    os.kill(os.getpid(), signal.SIGKILL)


def stay_until_gone(file: str, others: tuple[int, ...]) -> None:
    """Keep the connections open: a rank that is gone is noticed in another way."""
    while not all(Path(f"{file}.{other}").exists() for other in others):
        time.sleep(0.02)


def main() -> None:
    rank, file, end = int(sys.argv[1]), sys.argv[2], sys.argv[3]
    try:
        train(rank, file, end)
    finally:
        Path(f"{file}.{rank}").touch()


def train(rank: int, file: str, end: str) -> None:
    dist.init_process_group(
        "gloo", init_method=f"file://{file}", rank=rank, world_size=RANKS, timeout=timedelta(seconds=60)
    )
    module = text_stages(RANKS)[rank]
    schedule = PlanSchedule(PipelineStage(module, rank, RANKS, torch.device("cpu")), zb_h1(RANKS, 4), mean_loss)
    optimizer = PostValidatedOptimizer(
        adamw(list(module.parameters())),
        schedule,
        group=None,
        mode="post_validated",
        timeout_s=SHORT_S if end == "never" else 60,
    )
    tokens, target = batch(8)
    for step in range(LAST_STEP + 2):
        schedule.step(*([tokens] if rank == 0 else []), target=target if rank == RANKS - 1 else None)
        if step == LAST_STEP and rank == 1 and end.startswith("before"):
            die()
        if step == LAST_STEP and rank == 1 and end == "never":
            stay_until_gone(file, others=(0, 2))
            return
        optimizer.step()
        optimizer.zero_grad()
        if step == LAST_STEP and rank == 1 and end == "after its step":
            die()
        if step == LAST_STEP and end.endswith(("reading weights", "never")):
            module.state_dict()
    optimizer.finalize()


if __name__ == "__main__":
    main()
