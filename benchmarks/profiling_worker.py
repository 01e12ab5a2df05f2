"""One rank of ``benchmarks.profiling``: measures its stage, plans, and trains with the plan.

Usage: ``profiling_worker KIND FOLDER``; rank 0 writes ``profile.json`` and ``found.json``.
"""

from __future__ import annotations

import json
import os
import sys
import time
from pathlib import Path
from statistics import median

import torch
import torch.distributed as dist
from torch.distributed.pipelining import PipelineStage

import heuristic
import runtime_client
from profiler import Options, Splitter, StagedModel, gpt, measure
from profiler.models import Transformer
from tests.profiler import emulated
from zbplan.plan import Plan
from zbplan.problem import Problem
from zbplan.profile import Profile

BENCHMARK_GPT = Transformer(
    name="gpt-15m", blocks=8, hidden=384, heads=6, sequence=64, microbatch_size=4, vocabulary=512
)
EMULATED_FACTOR = 2.5
"""F, B and W of 50, 75 and 37.5 ms."""

MICROBATCHES = 8
SKIP, KEEP = 2, 7


def model(kind: str, stages: int) -> tuple[StagedModel, Splitter]:
    """Return what to train, and what splits its backward."""
    if kind == "gpt":
        return gpt.staged_model(BENCHMARK_GPT, stages), runtime_client.split
    slow = [emulated.Emulated(factor=EMULATED_FACTOR) for _ in range(stages)]
    return emulated.model(slow), emulated.split


def alone_on_a_core(rank: int) -> None:
    """Pin this process to a core of its own and compute on one thread."""
    cores = sorted(os.sched_getaffinity(0))
    os.sched_setaffinity(0, {cores[rank % len(cores)]})
    torch.set_num_threads(1)


def plan_for(profile: Profile) -> Plan:
    """Return the best constructive plan within twice the memory of 1F1B."""
    problem = {
        "profile": profile.model_dump(),
        "devices": profile.stages,
        "microbatches": MICROBATCHES,
        "placement": "linear",
        "memory_limit": "2x",
    }
    return heuristic.construct(Problem.parse(problem))


def iteration_ms(plan: Plan, trained: StagedModel, splitter: Splitter) -> float:
    """Train with a plan and return the median of the slowest rank's steady steps."""
    rank = dist.get_rank()
    stage = PipelineStage(trained.build(rank), rank, len(trained.stages), torch.device("cpu"))
    if splitter is not runtime_client.split:
        stage.dw_builder = splitter(stage.submod)
    schedule = runtime_client.PlanSchedule(stage, plan, trained.loss)
    (example,), target = trained.microbatch, trained.target
    batch = torch.cat([example.reshape(-1, example.shape[-1])] * MICROBATCHES)
    targets = torch.zeros(MICROBATCHES) if target is None else torch.cat([target] * MICROBATCHES)
    steps_ms = []
    for _ in range(SKIP + KEEP):
        dist.barrier()
        start = time.perf_counter()
        schedule.step(*([batch] if rank == 0 else []), target=targets)
        slowest = torch.tensor((time.perf_counter() - start) * 1e3)
        dist.all_reduce(slowest, dist.ReduceOp.MAX)
        steps_ms.append(slowest.item())
    if rank == 0:
        print("     steps, ms:", *(f"{step_ms:.0f}" for step_ms in steps_ms), flush=True)
    return median(steps_ms[SKIP:])


def main(kind: str, folder: Path) -> None:
    """Measure, plan, train, and write what was found."""
    dist.init_process_group("gloo")
    rank = dist.get_rank()
    if kind == "gpt":
        alone_on_a_core(rank)
    measured, splitter = model(kind, dist.get_world_size())
    profile = measure(measured, Options(splitter=splitter, steady=9, turns="together", force=True))
    trained, splitter = model(kind, dist.get_world_size())
    plan = plan_for(profile)
    found = {"predicted_ms": plan.metrics.iteration_ms, "measured_ms": iteration_ms(plan, trained, splitter)}
    if rank == 0:
        (folder / "profile.json").write_text(profile.to_json(), encoding="utf-8")
        (folder / "found.json").write_text(json.dumps(found), encoding="utf-8")
    dist.destroy_process_group()


if __name__ == "__main__":
    main(sys.argv[1], Path(sys.argv[2]))
