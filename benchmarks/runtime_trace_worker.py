"""One rank of ``benchmarks.runtime_trace``: trains with a plan, and keeps the most memory that a step took.

Usage: ``runtime_trace_worker FOLDER``; each rank writes ``RANK.json``.
"""

from __future__ import annotations

import json
import sys
from pathlib import Path

import torch
import torch.distributed as dist
from torch.distributed.pipelining import PipelineStage

import heuristic
import runtime_client
from benchmarks.profiling_worker import BENCHMARK_GPT, alone_on_a_core
from profiler import Options, gpt, measure
from profiler.memory import StorageMeter
from runtime_client.transfer_memory import peak_bytes
from zbplan.plan import Plan
from zbplan.problem import Problem
from zbplan.profile import Profile

MICROBATCHES = 8
METHODS = ("1f1b", "zb_h1", "zb_h2")
STEPS = 3


def plan_of(profile: Profile, method: str) -> Plan:
    """Return the named plan for as many devices as stages."""
    problem = {"profile": profile.model_dump(), "devices": profile.stages, "microbatches": MICROBATCHES}
    return heuristic.construct(Problem.parse({**problem, "method": method}))


def measured_bytes(plan: Plan, rank: int) -> int:
    """Return the most bytes of activations and their gradients that the last of a few steps held at once."""
    count = plan.requires.stages
    module = gpt.staged_model(BENCHMARK_GPT, count).build(rank)
    schedule = runtime_client.PlanSchedule(PipelineStage(module, rank, count, torch.device("cpu")), plan, gpt.loss)
    tokens = gpt.layered_model(BENCHMARK_GPT).microbatch[0].repeat(MICROBATCHES, 1)
    peak = 0
    for _ in range(STEPS):
        with StorageMeter() as meter:
            schedule.step(*([tokens] if rank == 0 else []), target=tokens)
            peak = meter.peak_bytes()
    return peak


def main(folder: Path) -> None:
    """Measure the stages once, and train with each method's plan."""
    dist.init_process_group("gloo")
    rank, stages = dist.get_rank(), dist.get_world_size()
    alone_on_a_core(rank)
    options = Options(splitter=runtime_client.split, steady=3, force=True)
    profile = measure(gpt.staged_model(BENCHMARK_GPT, stages), options)
    static = profile.per_stage("m_static_bytes")[rank]
    found = {}
    for method in METHODS:
        plan = plan_of(profile, method)
        found[method] = {
            "measured": measured_bytes(plan, rank),
            "planned": plan.metrics.peak_bytes[rank] - static,
            "with_transfers": peak_bytes(plan)[rank] - static,
        }
    (folder / f"{rank}.json").write_text(json.dumps(found))
    dist.destroy_process_group()


if __name__ == "__main__":
    main(Path(sys.argv[1]))
