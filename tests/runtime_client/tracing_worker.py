"""One of two ranks that trace what they train, the second with a clock that is ahead."""

from __future__ import annotations

import json
import sys
import time
from datetime import timedelta
from pathlib import Path
from typing import Any

import torch
import torch.distributed as dist
from torch.distributed.pipelining import PipelineStage

from runtime_client import PlanSchedule
from runtime_client.clock import offsets_ns
from runtime_client.errors import TraceError
from runtime_client.tracing import Tracer
from tests.runtime_client.models import batch, mean_loss, text_stages
from tests.runtime_client.plans import random_plan, zb_h1
from zbplan.placement import v_shape

AHEAD_NS = 5_000_000_000
STEPS, MICROBATCHES = 3, 4
PLANS = {"linear": zb_h1(2, MICROBATCHES), "v": random_plan(v_shape(2), MICROBATCHES, seed=3)}


def put_ahead() -> None:
    """Let this process's clock be ahead of all others."""
    clock = time.perf_counter_ns
    time.perf_counter_ns = lambda: clock() + AHEAD_NS


def traced(name: str) -> list[dict[str, Any]]:
    """Return the traces of the first step, and of those after it."""
    plan = PLANS[name]
    built, count = text_stages(plan.requires.stages), plan.requires.stages
    held = plan.placement[dist.get_rank()]
    stages = [PipelineStage(built[index], index, count, torch.device("cpu")) for index in held]
    schedule = PlanSchedule(stages, plan, mean_loss, trace=True)
    tokens, target = batch(2 * MICROBATCHES)

    def step() -> None:
        schedule.step(*([tokens] if 0 in held else []), target=target if count - 1 in held else None)

    step()
    first = schedule.trace()
    for _ in range(STEPS - 1):
        step()
    return [first.model_dump(), schedule.trace().model_dump()]


def noted(steps: int) -> str:
    """Return what collecting comes to where this rank has noted a number of steps."""
    tracer = Tracer(torch.device("cpu"))
    for _ in range(steps):
        with tracer.step(None, counts=lambda: True):
            pass
    try:
        return tracer.collect(PLANS["linear"], None).format
    except TraceError as error:
        return str(error)


def main() -> None:
    torch.set_num_threads(1)
    dist.init_process_group("gloo", timeout=timedelta(seconds=60))
    rank = dist.get_rank()
    if rank == 1:
        put_ahead()
    kept = {
        "offsets": offsets_ns(None),
        **{name: traced(name) for name in PLANS},
        "no step": noted(0),
        "other steps": noted(1 + rank),
    }
    (Path(sys.argv[1]) / f"{rank}.json").write_text(json.dumps(kept))
    dist.destroy_process_group()


if __name__ == "__main__":
    main()
