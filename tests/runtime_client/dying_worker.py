"""One of three ranks, of which the middle one is killed during its second step."""

from __future__ import annotations

import os
import signal
import sys
from datetime import timedelta

import torch
import torch.distributed as dist
from torch import Tensor, nn
from torch.distributed.pipelining import PipelineStage

from runtime_client import PlanSchedule
from tests.runtime_client.models import batch, mean_loss, text_stages
from tests.runtime_client.plans import zb_h1

RANKS = 3


class Killed(nn.Module):
    """Kills its process in the forward of the second step."""

    def __init__(self, inner: nn.Module, forwards: int) -> None:
        super().__init__()
        self.inner, self.left = inner, forwards

    def forward(self, x: Tensor) -> Tensor:
        self.left -= 1
        if self.left == 0:
            os.kill(os.getpid(), signal.SIGKILL)
        return self.inner(x)


def main() -> None:
    rank, file = int(sys.argv[1]), sys.argv[2]
    dist.init_process_group(
        "gloo", init_method=f"file://{file}", rank=rank, world_size=RANKS, timeout=timedelta(seconds=60)
    )
    plan = zb_h1(RANKS, 4)
    module = text_stages(RANKS)[rank]
    if rank == 1:
        module = Killed(module, forwards=1 + 4 + 2)
    schedule = PlanSchedule(PipelineStage(module, rank, RANKS, torch.device("cpu")), plan, mean_loss)
    tokens, target = batch(8)
    for _ in range(2):
        schedule.step(*([tokens] if rank == 0 else []), target=target if rank == RANKS - 1 else None)
        print("stepped", flush=True)


if __name__ == "__main__":
    main()
