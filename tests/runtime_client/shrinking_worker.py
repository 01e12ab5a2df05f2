"""One of two ranks, of which the first sends a shorter tensor in its second step."""

from __future__ import annotations

import sys
from datetime import timedelta

import torch
import torch.distributed as dist
from torch import Tensor, nn
from torch.distributed.pipelining import PipelineStage

from runtime_client import PlanSchedule
from tests.runtime_client.models import batch, mean_loss, text_stages
from tests.runtime_client.plans import zb_h1

RANKS, MICROBATCHES = 2, 4


class Shrinking(nn.Module):
    """Drops the last token once it is told to."""

    def __init__(self, inner: nn.Module) -> None:
        super().__init__()
        self.inner, self.drops = inner, False

    def forward(self, x: Tensor) -> Tensor:
        y = self.inner(x)
        return y[:, :-1] if self.drops else y


def main() -> None:
    rank, file = int(sys.argv[1]), sys.argv[2]
    dist.init_process_group(
        "gloo", init_method=f"file://{file}", rank=rank, world_size=RANKS, timeout=timedelta(seconds=60)
    )
    module = Shrinking(text_stages(RANKS)[rank])
    stage = PipelineStage(module, rank, RANKS, torch.device("cpu"))
    schedule = PlanSchedule(stage, zb_h1(RANKS, MICROBATCHES), mean_loss)
    tokens, target = batch(2 * MICROBATCHES)
    for step in range(2):
        module.drops = step == 1 and rank == 0
        schedule.step(*([tokens] if rank == 0 else []), target=target if rank == RANKS - 1 else None)
        print("stepped", flush=True)


if __name__ == "__main__":
    main()
