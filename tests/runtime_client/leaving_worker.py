"""One of two ranks, of which the second leaves where the first begins what takes both; the first writes its errors."""

from __future__ import annotations

import json
import sys
from collections.abc import Callable
from datetime import timedelta
from pathlib import Path

import torch
import torch.distributed as dist
from torch import optim
from torch.distributed.pipelining import PipelineStage

from runtime_client import PlanSchedule, PostValidatedOptimizer, broadcast
from tests.runtime_client.models import mean_loss, text_stages
from tests.runtime_client.plans import zb_h1
from zbplan.errors import ZbplanError

PLAN = zb_h1(2, 2)


def schedule() -> PlanSchedule:
    rank = dist.get_rank()
    stage = PipelineStage(text_stages(2)[rank], rank, 2, torch.device("cpu"))
    return PlanSchedule(stage, PLAN, mean_loss, trace=True)


def tracing() -> Callable[[], object]:
    return schedule().trace


def validating() -> Callable[[], object]:
    made = schedule()
    optimizer = optim.SGD(made.stages[0].submod.parameters(), lr=0.1)
    return lambda: PostValidatedOptimizer(optimizer, made, group=None, timeout_s=30)


SCENARIOS: dict[str, Callable[[], Callable[[], object]]] = {
    "broadcast": lambda: lambda: broadcast(PLAN),
    "schedule": lambda: schedule,
    "trace": tracing,
    "optimizer": validating,
}
"""What takes both ranks, prepared by both."""


def outcome(begin: Callable[[], object]) -> str:
    try:
        begin()
    except ZbplanError as error:
        return f"{type(error).__name__}: {error}"
    return "none"


def main() -> None:
    rank, folder = int(sys.argv[1]), Path(sys.argv[2])
    found = {}
    for number, (name, prepare) in enumerate(SCENARIOS.items()):
        meeting = f"file://{folder / f'meeting-{number}'}"
        dist.init_process_group("gloo", init_method=meeting, rank=rank, world_size=2, timeout=timedelta(seconds=30))
        begin = prepare()
        dist.barrier()
        if rank == 0:
            found[name] = outcome(begin)
        dist.destroy_process_group()
    if rank == 0:
        (folder / "found.json").write_text(json.dumps(found))


if __name__ == "__main__":
    main()
