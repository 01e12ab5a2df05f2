from __future__ import annotations

import json
from typing import Any

import pytest
import torch
import torch.distributed as dist
from torch import nn
from torch.distributed.pipelining import PipelineStage, ScheduleGPipe, ScheduleInterleavedZeroBubble

from profiler import MeasurementError, Recorder
from profiler.ranks import all_ranks
from runtime_client import split as split_linears
from tests.older_torch import needs_native_split
from tests.processes import torchrun
from tests.profiler.emulated import B_MS, F_MS, HELD, KEPT, W_MS, WIDTH, Emulated, loss, sgd, split
from tests.profiler.recorder_worker import KEEP, MICROBATCHES
from zbplan.profile import Profile

ROW = WIDTH * 4


@pytest.fixture(scope="module")
def recorded(tmp_path_factory: pytest.TempPathFactory) -> dict[str, dict[str, Any]]:
    """What two ranks, the second twice as slow as the first, recorded of 1F1B and of a plan."""
    folder = tmp_path_factory.mktemp("recorded")
    run = torchrun(2, "tests.profiler.recorder_worker", str(folder))
    assert run.returncode == 0, run.stderr
    return {name: json.loads((folder / f"{name}.json").read_text()) for name in ("1f1b", "plan")}


@pytest.mark.parametrize("schedule", ["1f1b", "plan"])
def test_ops_hold_neither_waits_nor_slow_first_steps(recorded: dict[str, Any], schedule: str) -> None:
    profile = Profile.parse(recorded[schedule]["profile"])
    assert profile.engine_mode == "weight_grad_store"
    assert profile.t_f_ms == [pytest.approx(factor * F_MS) for factor in (1, 2)]
    assert profile.t_b_ms == [pytest.approx(factor * B_MS) for factor in (1, 2)]
    assert profile.t_w_ms == [pytest.approx(factor * W_MS) for factor in (1, 2)]
    assert profile.t_bw_ms is None
    assert profile.statistics.t_f_ms.count == [KEEP * MICROBATCHES] * 2
    assert profile.forced == []


@pytest.mark.parametrize("schedule", ["1f1b", "plan"])
def test_bytes_are_those_of_the_isolated_mode(recorded: dict[str, Any], schedule: str) -> None:
    profile = Profile.parse(recorded[schedule]["profile"])
    assert profile.m_b_bytes == [ROW + HELD + ROW, ROW + HELD + 4]
    assert profile.m_w_bytes == [KEPT] * 2
    assert profile.m_static_bytes == [2 * 4] * 2
    assert profile.boundary_bytes == [ROW, 0]


def test_transfers_are_measured_between_the_ranks(recorded: dict[str, Any]) -> None:
    profile = Profile.parse(recorded["plan"]["profile"])
    assert profile.environment["placement"] == [[0], [1]]
    assert profile.statistics.t_comm_ms.forward.count == [30]


@pytest.mark.parametrize("schedule", ["1f1b", "plan"])
def test_the_job_goes_on_as_if_nothing_had_been(recorded: dict[str, Any], schedule: str) -> None:
    assert recorded[schedule]["left"] == []
    assert recorded[schedule]["kept"]


def test_steps_are_checked_against_their_ops(recorded: dict[str, Any]) -> None:
    checks = {check["name"]: check for check in recorded["1f1b"]["profile"]["checks"]}
    assert 0 < checks["ops_in_step"]["found"] < 1
    assert checks["outside_step"]["found"] == 0


class Job:
    """A pipeline of one process."""

    def __init__(self, module: nn.Module) -> None:
        self.stage = PipelineStage(module, 0, 1, torch.device("cpu"))
        self.schedule = ScheduleGPipe(self.stage, 2, loss_fn=loss)
        self.optimizer = sgd(list(module.parameters()))

    def step(self) -> None:
        self.schedule.step(torch.ones(2, WIDTH), target=torch.zeros(2))


@pytest.fixture
def alone():
    with all_ranks() as here:
        yield here


@pytest.mark.usefixtures("alone")
def test_without_splitter_bw_is_what_runs() -> None:
    job = Job(Emulated())
    recorder = Recorder(job.schedule, skip=1, keep=2)
    for _ in range(3):
        job.step()
    profile = recorder.profile()
    assert profile.engine_mode == "fused"
    assert (profile.t_b_ms, profile.t_w_ms) == ([pytest.approx(B_MS + W_MS)], [0])
    assert profile.t_bw_ms == profile.t_b_ms


@pytest.mark.usefixtures("alone")
def test_what_passes_outside_the_step_is_told(virtual_time) -> None:
    job = Job(Emulated())
    recorder = Recorder(job.schedule, splitter=split, skip=1, keep=3)
    for _ in range(4):
        job.step()
        virtual_time.sleep(2 * (F_MS + B_MS + W_MS))
    checks = {check.name: check for check in recorder.profile().checks}
    assert checks["ops_in_step"].found == 1
    assert checks["outside_step"].found == 0.5
    assert "your schedule is not the bottleneck" in checks["outside_step"].text


@pytest.mark.usefixtures("alone")
def test_a_profile_before_its_time_is_refused() -> None:
    job = Job(nn.Linear(WIDTH, 1))
    recorder = Recorder(job.schedule, skip=1, keep=2)
    job.step()
    with pytest.raises(MeasurementError, match="found 1 steps; needed 3: call the schedule's step that often"):
        recorder.profile()


@pytest.mark.usefixtures("alone")
def test_splitting_a_running_job_changes_no_gradient() -> None:
    torch.manual_seed(0)
    plain, split_later = nn.Linear(WIDTH, 1), nn.Linear(WIDTH, 1)
    split_later.load_state_dict(plain.state_dict())
    jobs = [Job(plain), Job(split_later)]
    recorder = Recorder(jobs[1].schedule, splitter=split_linears, skip=1, keep=1)
    for _ in range(4):  # two of them with nobody recording any more
        for job in jobs:
            job.step()
    assert recorder.done
    assert all(torch.equal(a.grad, b.grad) for a, b in zip(plain.parameters(), split_later.parameters(), strict=True))


def test_something_else_is_refused() -> None:
    with pytest.raises(MeasurementError, match=r"found a Linear; needed a schedule of torch\.distributed\.pipelining"):
        Recorder(nn.Linear(1, 1))
    assert not dist.is_initialized()


@needs_native_split
@pytest.mark.usefixtures("alone")
def test_torchs_own_split_is_profiled_as_native() -> None:
    torch.manual_seed(0)
    modules = [nn.Linear(WIDTH, WIDTH), nn.Linear(WIDTH, WIDTH)]
    stages = [PipelineStage(module, index, 2, torch.device("cpu")) for index, module in enumerate(modules)]
    schedule = ScheduleInterleavedZeroBubble(stages, 2, loss_fn=loss)
    recorder = Recorder(schedule, skip=1, keep=2)
    for _ in range(3):
        schedule.step(torch.ones(2, WIDTH), target=torch.zeros(2, WIDTH))
    profile = recorder.profile()
    assert profile.engine_mode == "native_split"
    assert profile.statistics.t_w_ms.count == [4, 4]
    assert profile.m_w_bytes[0] == profile.m_b_bytes[0] + ROW  # stage 0 leaves all to W and keeps the gradient
    assert profile.environment["placement"] == [[0, 1]]
