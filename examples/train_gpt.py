"""Train the small GPT of ``gpt.py`` with a plan from the service.

One process per device, started by torchrun::

    torchrun --standalone --nproc-per-node 4 examples/train_gpt.py --service http://127.0.0.1:8642 --key KEY

Or all stages in one process, in the plan's order of microbatches, which gives the same bits::

    python examples/train_gpt.py --service http://127.0.0.1:8642 --key KEY --single
"""

from __future__ import annotations

import argparse
import json
import sys
import time
from collections.abc import Iterator
from datetime import timedelta
from pathlib import Path

sys.path.insert(0, str(Path(__file__).parent.parent))

import torch
import torch.distributed as dist
from torch import Tensor
from torch.distributed.pipelining import PipelineStage

import runtime_client
from examples import gpt
from runtime_client.service import download


def train_pipeline(service: str, key: str, steps: int) -> Iterator[tuple[list[Tensor], float]]:
    """Yield the losses of each step (empty but on the last stage's rank) and its seconds on the slowest rank."""
    plan = runtime_client.fetch(service, key)
    stages = [
        PipelineStage(gpt.stage(index, plan.requires.stages), index, plan.requires.stages, torch.device("cpu"))
        for index in plan.placement[dist.get_rank()]
    ]
    optimizer = gpt.optimizer([parameter for stage in stages for parameter in stage.submod.parameters()])
    schedule = runtime_client.PlanSchedule(stages, plan, gpt.loss)
    for step in range(steps):
        tokens, target = gpt.batch(step, plan.requires.microbatches)
        losses: list[Tensor] = []
        dist.barrier()
        start = time.perf_counter()
        schedule.step(*([tokens] if stages[0].is_first else []), target=target, losses=losses)
        seconds = torch.tensor(time.perf_counter() - start, dtype=torch.float64)
        optimizer.step()
        optimizer.zero_grad()
        dist.all_reduce(seconds, dist.ReduceOp.MAX)
        yield losses, seconds.item()


def train_single(service: str, key: str, steps: int) -> Iterator[tuple[list[Tensor], float]]:
    """Yield the losses of each step and its seconds; all stages run in this process."""
    plan = download(service, key, timeout_s=60)
    modules = [gpt.stage(index, plan.requires.stages) for index in range(plan.requires.stages)]
    optimizer = gpt.optimizer([parameter for module in modules for parameter in module.parameters()])
    for step in range(steps):
        tokens, target = gpt.batch(step, plan.requires.microbatches)
        start = time.perf_counter()
        losses = runtime_client.reference_step(modules, plan, gpt.loss, tokens, target=target)
        seconds = time.perf_counter() - start
        optimizer.step()
        optimizer.zero_grad()
        yield losses, seconds


def main() -> None:
    """Train, and write the mean loss and the seconds of each step where the losses are."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--service", required=True, help="URL of the service")
    parser.add_argument("--key", required=True, help="key of the plan")
    parser.add_argument("--steps", type=int, default=10)
    parser.add_argument("--single", action="store_true", help="all stages in this process")
    parser.add_argument("--output", type=Path, help="JSON file for the losses and seconds of all steps")
    options = parser.parse_args()
    torch.set_num_threads(1)
    if not options.single:
        dist.init_process_group("gloo", timeout=timedelta(seconds=120))
    train = train_single if options.single else train_pipeline
    rows = []
    for step, (losses, seconds) in enumerate(train(options.service, options.key, options.steps)):
        if losses:
            mean = torch.stack(losses).mean()
            rows.append({"loss": mean.item(), "bits": mean.numpy().tobytes().hex(), "seconds": seconds})
            print(f"step {step}: loss {mean.item():.6f}, {seconds * 1e3:.1f} ms", flush=True)
    if rows and options.output:
        options.output.write_text(json.dumps(rows), encoding="utf-8")
    if not options.single:
        dist.destroy_process_group()


if __name__ == "__main__":
    main()
