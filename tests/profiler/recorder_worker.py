"""One of two ranks that train on emulated stages while they are recorded.

Usage: ``recorder_worker FOLDER``; writes ``1f1b.json`` and ``plan.json``, the profiles that rank 0 was given.
"""

from __future__ import annotations

import json
import sys
from pathlib import Path
from typing import Any

import pytest
import torch
import torch.distributed as dist
from torch.distributed.pipelining import PipelineStage, Schedule1F1B, schedules

import heuristic
from profiler import Recorder
from runtime_client import PlanSchedule
from runtime_client.links import Links
from tests.profiler.conftest import VirtualTime, install
from tests.profiler.emulated import WIDTH, Emulated, loss, split
from zbplan.problem import Problem

MICROBATCHES = 4
SKIP, KEEP = 1, 3
WAIT_MS = 20.0


def stage(rank: int) -> PipelineStage:
    module = Emulated(first_ms=500.0, factor=1.0 + rank)
    return PipelineStage(module, rank, 2, torch.device("cpu"))


def record(schedule: Any, recorder: Recorder, path: Path) -> None:
    parameter = next(recorder._tap.stages[0].submod.parameters())
    optimizer = torch.optim.SGD([parameter], lr=0.1)
    for _ in range(SKIP + KEEP):
        arguments = [torch.ones(MICROBATCHES, WIDTH)] if dist.get_rank() == 0 else []
        schedule.step(*arguments, target=torch.zeros(MICROBATCHES, WIDTH))
    gradient = parameter.grad.clone()
    profile = recorder.profile(name=path.stem, optimizer=optimizer)
    left = {name for name in vars(schedule) if name == "step"} | {
        name for name in vars(recorder._tap.stages[0]) if name.endswith("_one_chunk")
    }
    if dist.get_rank() == 0:
        kept = torch.equal(parameter.grad, gradient)
        path.write_text(json.dumps({"profile": profile.model_dump(), "left": sorted(left), "kept": kept}))


def wait_longer(clock: VirtualTime) -> None:
    """Let every wait for another rank take long."""
    waits = ((schedules, "_wait_batch_p2p"), (Links, "arrived"))
    for owner, name in waits:
        setattr(owner, name, _after_sleeping(clock, getattr(owner, name)))


def _after_sleeping(clock: VirtualTime, wait: Any) -> Any:
    def waited(*args: Any) -> None:
        clock.sleep(WAIT_MS)
        wait(*args)

    return waited


def main(folder: Path) -> None:
    dist.init_process_group("gloo")
    rank = dist.get_rank()
    with pytest.MonkeyPatch.context() as patch:
        wait_longer(install(patch))
        first = Schedule1F1B(stage(rank), MICROBATCHES, loss_fn=loss)
        record(first, Recorder(first, splitter=split, skip=SKIP, keep=KEEP), folder / "1f1b.json")

        profile = {"stages": 2, "t_f_ms": 2, "t_b_ms": 3, "t_w_ms": 1, "t_comm_ms": 0, "m_b_bytes": 1, "m_w_bytes": 1}
        problem = {"profile": profile, "devices": 2, "microbatches": MICROBATCHES, "method": "zb_h1"}
        again = stage(rank)
        again.dw_builder = split(again.submod)
        second = PlanSchedule(again, heuristic.construct(Problem.parse(problem)), loss)
        record(second, Recorder(second, skip=SKIP, keep=KEEP), folder / "plan.json")
    dist.destroy_process_group()


if __name__ == "__main__":
    main(Path(sys.argv[1]))
