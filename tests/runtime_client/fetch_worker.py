"""One rank of the start-up tests: goes through all scenarios and keeps what each came to on this rank."""

from __future__ import annotations

import json
import sys
from collections.abc import Callable
from datetime import timedelta
from pathlib import Path
from typing import Any

import torch
import torch.distributed as dist
from torch.distributed.pipelining import PipelineStage

from runtime_client import PlanSchedule, broadcast, fetch
from runtime_client.agreement import agree
from tests.runtime_client.models import mean_loss, text_stages
from tests.runtime_client.plans import random_plan, zb_h1
from zbplan.errors import ZbplanError
from zbplan.plan import PartRun, Plan


def schedule(plan: Plan, microbatches: int | None = None) -> str:
    rank = dist.get_rank()
    stage = PipelineStage(text_stages(2)[rank], rank, 2, torch.device("cpu"))
    return PlanSchedule(stage, plan, mean_loss, microbatches=microbatches).plan.plan_id


def scenarios(url: str, cache: str) -> dict[str, Callable[[], str | None]]:
    rank, plan = dist.get_rank(), zb_h1(2, 4)
    return {
        "fetch": lambda: fetch(url, plan.key, timeout_s=20, cache=cache).to_json(),
        "fetch a problem": lambda: fetch(url, plan.asked, timeout_s=20, cache=cache).to_json(),
        "broadcast": lambda: broadcast(plan if rank == 0 else None).to_json(),
        "broadcast bytes": lambda: broadcast(plan.to_json().encode() if rank == 0 else b"other").to_json(),
        "no service": lambda: fetch("http://127.0.0.1:9", "0" * 64, timeout_s=0.2, cache=cache).to_json(),
        "no service, but a copy on disk": lambda: fetch(
            "http://127.0.0.1:9", plan.key, timeout_s=0.2, cache=cache
        ).to_json(),
        "no plan on rank 0": lambda: broadcast(plan if rank else None).to_json(),
        "no plan but junk": lambda: broadcast(b'{"format": "zbplan.plan/1"').to_json(),
        "a bit turned over on the way to rank 1": lambda: with_turned_bit(lambda: broadcast(plan).to_json()),
        "same content": lambda: agree(b"content"),
        "other content": lambda: agree(b"content" if rank != 1 else b"contents"),
        "a finding on rank 1": lambda: agree(b"content", ["found é", "found ï"] if rank == 1 else []),
        "a finding too long to send": lambda: agree(b"content", ["é" * 4000] if rank == 0 else []),
        "two valid plans": lambda: schedule(random_plan([[0], [1]], 4, seed=rank)),
        "one plan, found in different times": lambda: schedule(plan.with_parts([found_in(rank)])),
        "two numbers of microbatches": lambda: schedule(plan, microbatches=4 + rank),
    }


def found_in(seconds: float) -> PartRun:
    return PartRun(part="planner", ran_s=seconds, outcome="done")


def with_turned_bit(scenario: Callable[[], str]) -> str:
    """Run a scenario while rank 1 receives the last byte of every payload wrong."""

    def broadcast_wrongly(tensor: torch.Tensor, **options: Any) -> None:
        transport(tensor, **options)
        if tensor.dtype == torch.uint8 and dist.get_rank() == 1:
            tensor[-1] ^= 1

    transport, dist.broadcast = dist.broadcast, broadcast_wrongly
    try:
        return scenario()
    finally:
        dist.broadcast = transport


def outcome(scenario: Callable[[], str | None]) -> list[str | None]:
    try:
        return ["returned", scenario()]
    except ZbplanError as error:
        return [type(error).__name__, str(error)]


def main() -> None:
    dist.init_process_group("gloo", timeout=timedelta(seconds=60))
    kept = {name: outcome(scenario) for name, scenario in scenarios(sys.argv[1], f"{sys.argv[2]}/plans").items()}
    (Path(sys.argv[2]) / f"{dist.get_rank()}.json").write_text(json.dumps(kept))
    dist.destroy_process_group()


if __name__ == "__main__":
    main()
