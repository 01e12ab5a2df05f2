"""Start training at once on 1F1B, measure meanwhile, and switch to the best plan without a break.

One process per device, started by torchrun; without a service the plan is built here, by ``heuristic``::

    torchrun --standalone --nproc-per-node 4 examples/switch_midrun.py --service http://127.0.0.1:8642

Weights, optimizer state and data go on as they are. So do the losses, to the last bit, as long as the plan runs each
stage's W in the order of microbatches (plans of equal microbatches do) and the number of microbatches is a power of
two (torch scales gradients behind their sum, a ``PlanSchedule`` before it).
"""

from __future__ import annotations

import argparse
import json
import sys
from collections.abc import Iterator
from datetime import timedelta
from pathlib import Path
from typing import Any

sys.path.insert(0, str(Path(__file__).parent.parent))

import torch
import torch.distributed as dist
from torch import Tensor, optim
from torch.distributed.pipelining import PipelineStage, Schedule1F1B

import heuristic
import runtime_client
from examples import gpt
from profiler import Recorder
from zbplan.plan import Plan
from zbplan.problem import Problem
from zbplan.profile import Profile

MICROBATCHES = 8
MEMORY_LIMIT = "2x"


def train(steps: int, service: str | None, *, force: bool) -> Iterator[tuple[str, list[Tensor]]]:
    """Yield what each step ran on, and its losses (empty but on the last stage's rank)."""
    rank, ranks = dist.get_rank(), dist.get_world_size()
    stage = PipelineStage(gpt.stage(rank, ranks), rank, ranks, torch.device("cpu"))
    optimizer = gpt.optimizer(list(stage.submod.parameters()))
    schedule: Any = Schedule1F1B(stage, MICROBATCHES, loss_fn=gpt.loss)
    recorder, name = Recorder(schedule, splitter=runtime_client.split), "1f1b"
    for step in range(steps):
        if recorder.done and not isinstance(schedule, runtime_client.PlanSchedule):
            plan = plan_for(recorder.profile(name="gpt-10m", optimizer=optimizer, force=force), service)
            schedule, name = runtime_client.PlanSchedule(stage, plan, gpt.loss), plan.provenance.method
            tell(plan)
        yield name, train_step(schedule, stage, optimizer, step)


def plan_for(profile: Profile, service: str | None) -> Plan:
    """Return the same plan on every rank: the service's, or else one built here."""
    problem = {
        "profile": profile.model_dump(),
        "devices": dist.get_world_size(),
        "microbatches": MICROBATCHES,
        "placement": "linear",
        "memory_limit": MEMORY_LIMIT,
    }
    if service is not None:
        return runtime_client.fetch(service, problem)
    # Equal inputs give equal plans, and equal errors: no rank waits for one that could build none.
    return heuristic.construct(Problem.parse(problem))


def tell(plan: Plan) -> None:
    """Say what the switch is expected to gain."""
    before = heuristic.construct(Problem.parse(plan.problem | {"method": "1f1b"}))
    times_ms = (before.metrics.iteration_ms, plan.metrics.iteration_ms)
    if dist.get_rank() == 0:
        print("switch: 1f1b takes {:.1f} ms by the profile, the plan {:.1f} ms".format(*times_ms), flush=True)


def train_step(schedule: Any, stage: PipelineStage, optimizer: optim.Optimizer, step: int) -> list[Tensor]:
    """Train one step and return its losses."""
    tokens, target = gpt.batch(step, MICROBATCHES)
    losses: list[Tensor] = []
    inputs, targets = [tokens] if stage.is_first else [], target if stage.is_last else None
    schedule.step(*inputs, target=targets, losses=losses if stage.is_last else None)
    optimizer.step()
    optimizer.zero_grad()
    return losses


def main() -> None:
    """Train, and write the mean loss of each step where the losses are."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--service", help="URL of the service; without it the plan is built here")
    parser.add_argument("--steps", type=int, default=12, help="the first 7 are measured")
    parser.add_argument("--force", action="store_true", help="keep a profile whose samples are scattered")
    parser.add_argument("--output", type=Path, help="JSON file for the losses of all steps")
    options = parser.parse_args()
    torch.set_num_threads(1)
    dist.init_process_group("gloo", timeout=timedelta(seconds=120))
    rows = []
    for step, (name, losses) in enumerate(train(options.steps, options.service, force=options.force)):
        if losses:
            mean = torch.stack(losses).detach().mean()
            rows.append({"loss": mean.item(), "bits": mean.numpy().tobytes().hex(), "schedule": name})
            print(f"step {step}: loss {mean.item():.6f} on {name}", flush=True)
    if rows and options.output:
        options.output.write_text(json.dumps(rows), encoding="utf-8")
    dist.destroy_process_group()


if __name__ == "__main__":
    main()
