"""One rank of ``benchmarks.post_validated``: trains stages that sleep, once per way of stepping the optimizer.

Usage: ``post_validated_worker FOLDER``; every rank writes ``RANK.json``.
"""

from __future__ import annotations

import json
import sys
import time
from pathlib import Path

import torch
import torch.distributed as dist
from torch import nn, optim
from torch.distributed.pipelining import PipelineStage

import heuristic
from benchmarks.sleeping import FLOATS, Sleeping
from runtime_client import PlanSchedule, PostValidatedOptimizer, master_weights
from zbplan.plan import Plan
from zbplan.problem import Problem

RANKS = 4
MICROBATCHES = 8
F_MS, B_MS, W_MS, COMM_MS = 60.0, 75.0, 50.0, 1.0
WEIGHTS = (128, 1024)
"""Of each of a stage's four weights. AdamW takes 1.3 ms for them on a CPU: 0.1 % of an iteration, as on devices."""
WAYS = {
    "post-validated": ("post_validated", "post_validated"),
    "not validated": ("post_validated", "none"),
    "synchronous": ("synchronous", "synchronous"),
}
"""Which plan is run, and how the optimizer steps."""
ROUNDS, SKIP, KEEP = 3, 2, 5


class NotValidated:
    """The optimizer alone, which looks at no gradient but its own: the least that a step can cost."""

    def __init__(self, optimizer: optim.Optimizer) -> None:
        self._optimizer = optimizer

    def step(self) -> None:
        """Step."""
        self._optimizer.step()

    def zero_grad(self) -> None:
        """Clear the gradients."""
        self._optimizer.zero_grad()

    def finalize(self) -> None:
        """There is nothing to make sure of."""


def plan_for(optimizer: str) -> Plan:
    """Return the best constructive plan within twice the memory of 1F1B."""
    profile = {"stages": RANKS, "t_f_ms": F_MS, "t_b_ms": B_MS, "t_w_ms": W_MS, "t_comm_ms": COMM_MS}
    profile |= {"m_b_bytes": 1, "m_w_bytes": 1}
    asked = {"profile": profile, "devices": RANKS, "microbatches": MICROBATCHES, "memory_limit": "2x"}
    return heuristic.construct(Problem.parse(asked | {"optimizer": optimizer}))


def train(plan: Plan, mode: str) -> float:
    """Train with a plan and return the mean time from one iteration's end to the next on this rank, in milliseconds."""
    rank = dist.get_rank()
    module = Sleeping(F_MS, B_MS, W_MS, WEIGHTS)
    stage = PipelineStage(module, rank, RANKS, torch.device("cpu"), dw_builder=module.take)
    schedule = PlanSchedule(stage, plan, lambda output, target: output.mean())
    inner = optim.AdamW(module.parameters(), lr=1e-4)
    options = {"group": None, "max_norm": 1e9, "mode": mode}
    optimizer = NotValidated(inner) if mode == "none" else PostValidatedOptimizer(inner, schedule, **options)
    batch = torch.zeros(MICROBATCHES, FLOATS)
    ends = []
    for at in range(SKIP + KEEP + 1):
        if at == 1:
            dist.barrier()  # the first iteration finds out shapes
        schedule.step(*([batch] if rank == 0 else []), target=batch if rank == RANKS - 1 else None)
        optimizer.step()
        optimizer.zero_grad()
        ends.append(time.perf_counter())
    optimizer.finalize()
    return 1e3 * (ends[-1] - ends[SKIP]) / KEEP


def memory() -> dict[str, float]:
    """Return what speculation keeps, as a share of weights and moments, with and without float32 masters."""
    shares = {}
    for dtype in (torch.float32, torch.bfloat16):
        module = nn.Sequential(*(nn.Linear(256, 256) for _ in range(8))).to(dtype)
        stage = PipelineStage(module, dist.get_rank(), RANKS, torch.device("cpu"))
        masters = master_weights(module.parameters()) if dtype == torch.bfloat16 else None
        inner = optim.AdamW(masters.values() if masters else module.parameters())
        optimizer = PostValidatedOptimizer(
            inner,
            PlanSchedule(stage, plan_for("post_validated"), lambda output, target: output.mean()),
            group=None,
            mode="post_validated",
            masters=masters,
        )
        for _ in range(2):
            for parameter in module.parameters():
                parameter.grad = torch.full_like(parameter, 1e-3)
            optimizer.step()
            optimizer.finalize()
        shares[str(dtype)] = optimizer.memory.kept_share
        shares[f"{dtype} passing"] = optimizer.memory.passing_bytes / optimizer.memory.held_bytes
    return shares


def main(folder: Path) -> None:
    """Train in every way, and write what was found."""
    torch.set_num_threads(1)
    dist.init_process_group("gloo")
    plans = {optimizer: plan_for(optimizer) for optimizer in ("post_validated", "synchronous")}
    # All ways in turn, some rounds: what else the machine does hits them alike.
    rounds = [{way: train(plans[plan], mode) for way, (plan, mode) in WAYS.items()} for _ in range(ROUNDS)]
    plan_ms = {name: plan.metrics.iteration_ms for name, plan in plans.items()}
    found = {"rounds_ms": rounds, "plan_ms": plan_ms, "memory": memory()}
    (folder / f"{dist.get_rank()}.json").write_text(json.dumps(found), encoding="utf-8")
    dist.destroy_process_group()


if __name__ == "__main__":
    main(Path(sys.argv[1]))
