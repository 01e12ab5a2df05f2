"""The commands of ``examples/torchtitan.md``, as they stand there; torch loads what they make as torchtitan does."""

from __future__ import annotations

import os
import re
import shlex
import subprocess
import sys
from dataclasses import dataclass
from pathlib import Path

import pytest
import torch
import torch.distributed as dist
from torch.distributed.pipelining import PipelineStage
from torch.distributed.pipelining.schedules import _PipelineScheduleRuntime, get_schedule_class

from zbplan.plan import Plan
from zbplan.profile import Profile

ROOT = Path(__file__).parents[2]
TEXT = (ROOT / "examples" / "torchtitan.md").read_text(encoding="utf-8")
PATH = os.pathsep.join([str(Path(sys.executable).parent), os.environ["PATH"]])
ENVIRONMENT = os.environ | {"PATH": PATH, "PYTHONPATH": str(ROOT), "OMP_NUM_THREADS": "1"}
PARALLELISM = "--parallelism.pipeline_parallel"


def blocks(language: str) -> list[str]:
    return re.findall(rf"```{language}\n(.*?)```", TEXT, re.DOTALL)


COMMANDS = [
    shlex.split(line.removeprefix("$ "))
    for block in blocks("console")
    for line in block.replace("\\\n", " ").splitlines()
    if line.startswith("$ ")
]
OPTIONS = dict(zip(COMMANDS[-1], COMMANDS[-1][1:], strict=False))
"""What torchtitan is started with."""


@dataclass(frozen=True)
class Made:
    plan: Plan
    csv: Path


@pytest.fixture(scope="module")
def made(tmp_path_factory: pytest.TempPathFactory) -> Made:
    folder = tmp_path_factory.mktemp("torchtitan")
    (problem,) = blocks("json")
    (folder / "problem.json").write_text(problem)
    for command in COMMANDS[:-1]:  # the last one needs torchtitan
        subprocess.run(command, cwd=folder, env=ENVIRONMENT, check=True, timeout=120)
    return Made(Plan.parse_json((folder / "plan.json").read_bytes()), folder / OPTIONS[f"{PARALLELISM}_schedule_csv"])


def test_what_torchtitan_is_told_agrees_with_the_plan(made: Made) -> None:
    requires = made.plan.requires
    assert int(OPTIONS[f"{PARALLELISM}_degree"]) == int(OPTIONS["--nproc-per-node"]) == requires.devices
    rows = int(OPTIONS["--training.local_batch_size"]), int(OPTIONS[f"{PARALLELISM}_microbatch_size"])
    assert rows[0] // rows[1] == requires.microbatches
    assert get_schedule_class(OPTIONS[f"{PARALLELISM}_schedule"]).__name__ == "ScheduleZBVZeroBubble"
    assert made.plan.placement == [[0, 7], [1, 6], [2, 5], [3, 4]]


def test_torch_loads_the_plans_ops_in_their_order(made: Made) -> None:
    from torch.testing._internal.distributed import fake_pg  # noqa: F401

    dist.init_process_group("fake", store=dist.HashStore(), rank=0, world_size=4)
    try:
        stages = [PipelineStage(torch.nn.Linear(1, 1), at, 8, torch.device("cpu")) for at in made.plan.placement[0]]
        schedule = _PipelineScheduleRuntime(stages, 8, loss_fn=torch.nn.functional.mse_loss, scale_grads=False)
        schedule._load_csv(str(made.csv))
    finally:
        dist.destroy_process_group()
    letters = {"F": "F", "B": "I", "W": "W", "BW": "B"}
    for rank, ops in enumerate(made.plan.devices):
        loaded = [str(action) for action in schedule.pipeline_order_with_comms[rank] if action.is_compute_op]
        columns = zip(ops.stage, ops.kind, ops.microbatch, strict=True)
        assert loaded == [f"{stage}{letters[kind]}{microbatch}" for stage, kind, microbatch in columns]


def test_the_profile_is_of_torchs_own_split(made: Made) -> None:
    profile = Profile.read(made.csv.with_name("profile.json"))
    assert (profile.engine_mode, profile.stages) == ("native_split", made.plan.requires.stages)
    assert profile.environment["placement"] == made.plan.placement
    assert made.plan.requires.engine_mode == profile.engine_mode
