"""One of four ranks: two stages, each on two ranks that train on different halves of the batch."""

from __future__ import annotations

import sys
from datetime import timedelta
from pathlib import Path
from typing import Any

import torch
import torch.distributed as dist
from torch import Tensor
from torch.distributed.device_mesh import init_device_mesh
from torch.distributed.fsdp import fully_shard
from torch.distributed.pipelining import PipelineStage
from torch.distributed.tensor import DTensor

from runtime_client import PlanSchedule, PostValidatedOptimizer
from runtime_client.post_validated import Mode
from tests.runtime_client.models import batch, mean_loss, text_stages
from tests.runtime_client.plans import zb_h1
from tests.runtime_client.post_validated_trials import STEPS, adamw

MICROBATCHES, ROWS = 4, 16
MAX_NORM = 0.45
SHARDED, REDUCED, REDUCED_APART = "FSDP2", "all-reduce", "all-reduce, each pipeline by itself"
KINDS = (SHARDED, REDUCED, REDUCED_APART)


def train(kind: str, mode: Mode) -> dict[str, Any]:
    mesh = init_device_mesh("cpu", (2, 2), mesh_dim_names=("pipeline", "data"))
    stage, half = mesh.get_local_rank("pipeline"), mesh.get_local_rank("data")
    module = text_stages(2)[stage]
    if kind == SHARDED:
        fully_shard(module, mesh=mesh["data"])
    pipeline = mesh.get_group("pipeline")
    schedule = PlanSchedule(
        PipelineStage(module, stage, 2, torch.device("cpu"), group=pipeline), zb_h1(2, MICROBATCHES), mean_loss
    )
    parameters = list(module.parameters())
    optimizer = PostValidatedOptimizer(
        adamw(parameters),
        schedule,
        group=pipeline if kind == REDUCED_APART else None,
        mode=mode,
        max_norm=MAX_NORM,
        rollback_limit=1.0,
        timeout_s=60,
    )
    losses, norms = [], []
    for step in range(STEPS):
        own: list[Tensor] = []
        tokens, target = (part.chunk(2)[half] for part in batch(ROWS, seed=step))
        schedule.step(*([tokens] if stage == 0 else []), target=target if stage == 1 else None, losses=own)
        if kind != SHARDED:
            for parameter in parameters:
                dist.all_reduce(parameter.grad, group=mesh.get_group("data"))
                parameter.grad /= 2
        losses += own
        norms.append(optimizer.step())
        optimizer.zero_grad()
    optimizer.finalize()
    return {
        "losses": losses,
        "norms": [norm.result() for norm in norms],
        "weights": {f"{stage}.{name}": whole(tensor) for name, tensor in module.state_dict().items()},
        "apart": optimizer.rollbacks,
    }


def whole(tensor: Tensor) -> Tensor:
    return tensor.full_tensor() if isinstance(tensor, DTensor) else tensor


def main() -> None:
    torch.set_num_threads(1)
    dist.init_process_group("gloo", timeout=timedelta(seconds=60))
    kept = {kind: {mode: train(kind, mode) for mode in ("synchronous", "post_validated")} for kind in KINDS}
    torch.save(kept, Path(sys.argv[1]) / f"{dist.get_rank()}.pt")
    dist.destroy_process_group()


if __name__ == "__main__":
    main()
