"""One of four ranks, two pipelines of two: each trains on half of the batch, and the gradients are averaged."""

from __future__ import annotations

import sys
from collections.abc import Callable
from datetime import timedelta
from functools import partial
from pathlib import Path

import torch
import torch.distributed as dist
from torch import Tensor, nn
from torch.distributed.device_mesh import DeviceMesh, init_device_mesh
from torch.distributed.fsdp import fully_shard
from torch.distributed.pipelining import PipelineStage
from torch.distributed.tensor import DTensor

from runtime_client import PlanSchedule
from tests.runtime_client.models import batch, mean_loss, placed_stages, text_stages, tied_stages
from tests.runtime_client.plans import random_plan, zb_h1
from zbplan.placement import v_shape
from zbplan.plan import Plan

STEPS, MICROBATCHES, ROWS = 2, 4, 2
Build = Callable[[int], list[nn.Module]]
PLANS: dict[str, tuple[Plan, Build]] = {
    "zb_h1": (zb_h1(2, MICROBATCHES), text_stages),
    "v": (random_plan(v_shape(2), MICROBATCHES, 1), text_stages),
    "v, placed": (random_plan(v_shape(2), MICROBATCHES, 3), partial(placed_stages, rows=ROWS)),
    "v, tied": (random_plan(v_shape(2), MICROBATCHES, 2), tied_stages),
}
CASES = [
    (name, way)
    for name in PLANS
    for way in ("all_reduce", "overlapped", "fsdp2")
    if (name, way) != ("v, tied", "fsdp2")
]
"""fully_shard puts each stage's parameters in a group of its own, so no two stages can share one."""


def half(step: int, replica: int) -> tuple[Tensor, Tensor]:
    return batch(ROWS * MICROBATCHES, seed=2 * step + replica)


def train(plan: Plan, build: Build, way: str, mesh: DeviceMesh) -> dict[str, Tensor]:
    pipeline, replicas = mesh.get_group("pp"), mesh.get_group("dp")
    built, count = build(plan.requires.stages), plan.requires.stages
    held = {index: built[index] for index in plan.placement[mesh.get_local_rank("pp")]}
    for module in held.values() if way == "fsdp2" else ():
        for layer in module:
            fully_shard(layer, mesh=mesh["dp"], reshard_after_forward=False)
        fully_shard(module, mesh=mesh["dp"], reshard_after_forward=False)
    device = torch.device("cpu")
    stages = [PipelineStage(module, index, count, device, group=pipeline) for index, module in held.items()]
    options = {} if way == "fsdp2" else {"data_parallel_group": replicas, "overlap_grad_reduce": way == "overlapped"}
    schedule = PlanSchedule(stages, plan, mean_loss, **options)
    for step in range(STEPS):
        tokens, target = half(step, mesh.get_local_rank("dp"))
        schedule.step(*([tokens] if 0 in held else []), target=target if count - 1 in held else None)
    return {
        f"{index}.{name}": whole(parameter.grad)
        for index, module in held.items()
        for name, parameter in module.named_parameters()
    }


def whole(gradient: Tensor) -> Tensor:
    return gradient.full_tensor() if isinstance(gradient, DTensor) else gradient


def main() -> None:
    torch.set_num_threads(1)
    dist.init_process_group("gloo", timeout=timedelta(seconds=60))
    mesh = init_device_mesh("cpu", (2, 2), mesh_dim_names=("dp", "pp"))
    kept = {f"{name}, {way}": train(*PLANS[name], way, mesh) for name, way in CASES}
    torch.save(kept, Path(sys.argv[1]) / f"{dist.get_rank()}.pt")
    dist.destroy_process_group()


if __name__ == "__main__":
    main()
