"""The example, as a person starts it, against a run that never leaves 1F1B."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest
import torch

import heuristic
import runtime_client
from examples import gpt
from examples.switch_midrun import MICROBATCHES
from tests.processes import torchrun
from zbplan.problem import Problem

ROOT = Path(__file__).parents[2]
RANKS, MEASURED, STEPS = 4, 7, 9


@pytest.fixture(scope="module")
def rows(tmp_path_factory: pytest.TempPathFactory) -> list[dict[str, Any]]:
    """What each step of the example came to."""
    output = tmp_path_factory.mktemp("switch") / "rows.json"
    launcher = [sys.executable, "-m", "torch.distributed.run", "--standalone", f"--nproc-per-node={RANKS}"]
    # Nobody knows what else this machine does: a scattered profile is good enough here.
    arguments = ["examples/switch_midrun.py", "--force", "--steps", str(STEPS), "--output", str(output)]
    environment = os.environ | {"OMP_NUM_THREADS": "1"}
    subprocess.run([*launcher, *arguments], cwd=ROOT, env=environment, check=True, timeout=150)
    kept: list[dict[str, Any]] = json.loads(output.read_text())
    return kept


def test_it_trains_on_a_better_plan_once_it_has_measured(rows: list[dict[str, Any]]) -> None:
    assert [row["schedule"] for row in rows[:MEASURED]] == ["1f1b"] * MEASURED
    assert {row["schedule"] for row in rows[MEASURED:]}.isdisjoint({"1f1b", "gpipe"})
    assert len(rows) == STEPS


def test_losses_go_on_bit_for_bit_as_if_it_had_never_switched(rows: list[dict[str, Any]]) -> None:
    assert [row["bits"] for row in rows] == _never_switched()


def test_every_rank_ends_with_the_error_where_nothing_can_be_planned() -> None:
    run = torchrun(2, "tests.examples.unplannable_worker", timeout_s=60)
    assert run.returncode == 0, run.output
    for rank in range(2):
        assert f"rank {rank} ends: $.placement: found 'linear' with 3 stages on 2 devices" in run.output


def _never_switched() -> list[str]:
    """Return the bits of the mean losses of one process that runs every step in the order of 1F1B."""
    profile = {"stages": RANKS, "t_f_ms": 1, "t_b_ms": 1, "t_w_ms": 1, "t_comm_ms": 0, "m_b_bytes": 1, "m_w_bytes": 1}
    asked = {"profile": profile, "devices": RANKS, "microbatches": MICROBATCHES, "method": "1f1b"}
    plan = heuristic.construct(Problem.parse(asked))
    stages = [gpt.stage(index, RANKS) for index in range(RANKS)]
    optimizer = gpt.optimizer([parameter for stage in stages for parameter in stage.parameters()])
    threads = torch.get_num_threads()
    torch.set_num_threads(1)  # sums are cut among threads
    bits = []
    for step in range(STEPS):
        tokens, target = gpt.batch(step, MICROBATCHES)
        losses = runtime_client.reference_step(stages, plan, gpt.loss, tokens, target=target)
        bits.append(torch.stack(losses).mean().numpy().tobytes().hex())
        optimizer.step()
        optimizer.zero_grad()
    torch.set_num_threads(threads)
    return bits
