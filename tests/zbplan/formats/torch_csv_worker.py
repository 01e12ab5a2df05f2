"""One of two ranks that train in torch's own runtime, from CSVs."""

from __future__ import annotations

import sys
from datetime import timedelta
from pathlib import Path
from typing import Any

import torch
import torch.distributed as dist
from torch.distributed.pipelining import PipelineStage
from torch.distributed.pipelining.schedules import _PipelineScheduleRuntime

import heuristic
import runtime_client
from runtime_client.lowering import lower
from tests.older_torch import without_greetings
from tests.runtime_client.models import batch, mean_loss, text_stages
from tests.runtime_client.plans import problem_of, zb_h1
from zbplan.formats.pytorch_csv import from_actions, from_plan, write
from zbplan.placement import v_shape

MICROBATCHES = 4
PLANS = {
    "linear": zb_h1(2, MICROBATCHES),
    "v": heuristic.construct(problem_of(v_shape(2), MICROBATCHES).model_copy(update={"method": "v_half"})),
}
LAYOUTS = ("compute_only", "compute_comms")


def train(name: str, layout: str, folder: Path) -> dict[str, Any]:
    plan, rank = PLANS[name], dist.get_rank()
    path = folder / f"{name}.{layout}.{rank}.csv"
    path.write_text(write(from_plan(plan) if layout == "compute_only" else from_actions(lower(plan))))
    built, count = text_stages(plan.requires.stages), plan.requires.stages
    held = {index: built[index] for index in plan.placement[rank]}
    cpu = torch.device("cpu")
    stages = [
        PipelineStage(module, index, count, cpu, dw_builder=runtime_client.split(module))
        for index, module in held.items()
    ]
    schedule = _PipelineScheduleRuntime(without_greetings(stages), MICROBATCHES, loss_fn=mean_loss)
    schedule._load_csv(str(path), format=layout)
    tokens, target = batch(2 * MICROBATCHES)
    schedule.step(*([tokens] if 0 in held else []), target=target if count - 1 in held else None)
    parameters = {
        f"{index}.{name}": value for index, module in held.items() for name, value in module.named_parameters()
    }
    return {name: parameter.grad for name, parameter in parameters.items()}


def main() -> None:
    torch.set_num_threads(1)
    dist.init_process_group("gloo", timeout=timedelta(seconds=60))
    folder = Path(sys.argv[1])
    kept = {f"{name}, {layout}": train(name, layout, folder) for name in PLANS for layout in LAYOUTS}
    torch.save(kept, folder / f"{dist.get_rank()}.pt")
    dist.destroy_process_group()


if __name__ == "__main__":
    main()
