from __future__ import annotations

import csv
from itertools import product
from pathlib import Path
from typing import Any

import pytest
import torch
import torch.distributed as dist
from hypothesis import given, settings
from hypothesis import strategies as st
from torch.distributed.pipelining import PipelineStage, schedules

from tests.runtime_client.plans import plan_of, problem_of, random_plan
from tests.strategies import problems, random_orders
from zbplan.errors import InvalidInputError
from zbplan.formats.pytorch_csv import Cell, from_plan, read, to_plan, write
from zbplan.placement import linear, v_shape
from zbplan.problem import Problem
from zbplan.validate import check

SCHEDULES: dict[str, tuple[type, int]] = {
    "LoopedBFS": (schedules.ScheduleLoopedBFS, 2),
    "Interleaved1F1B": (schedules.ScheduleInterleaved1F1B, 2),
    "InterleavedZeroBubble": (schedules.ScheduleInterleavedZeroBubble, 2),
    "ZBVZeroBubble": (schedules.ScheduleZBVZeroBubble, 2),
    "DualPipeV": (schedules.ScheduleDualPipeV, 2),
}


def torchs_own(name: str, devices: int, microbatches: int) -> Any:
    """Return a schedule of torch as rank 0 of a group has it, which knows what all ranks run."""
    kind, chunks = SCHEDULES[name]
    v = name in ("ZBVZeroBubble", "DualPipeV")
    held = v_shape(devices)[0] if v else [0, devices]
    dist.init_process_group("fake", store=dist.HashStore(), rank=0, world_size=devices)
    try:
        count = devices * chunks
        stages = [PipelineStage(torch.nn.Linear(1, 1), at, count, torch.device("cpu")) for at in held]
        return kind(stages, microbatches, loss_fn=torch.nn.functional.mse_loss)
    finally:
        dist.destroy_process_group()


@pytest.fixture(autouse=True)
def fake_backend() -> None:
    from torch.testing._internal.distributed import fake_pg  # noqa: F401


@pytest.mark.parametrize("layout", ["compute_only", "compute_comms"])
@pytest.mark.parametrize(("name", "devices"), list(product(SCHEDULES, (2, 4))))
def test_what_torch_writes_is_read_and_written_back_to_the_letter(
    tmp_path: Path, name: str, devices: int, layout: str
) -> None:
    schedule = torchs_own(name, devices, 2 * devices)
    schedule._dump_csv(tmp_path / "torch.csv", format=layout)
    text = (tmp_path / "torch.csv").read_text().replace("\r\n", "\n")
    assert write(read(text)) == text


@settings(deadline=None, max_examples=40)
@given(problems(placements=("linear", "v", "interleaved"), limited=False), st.integers(0, 2**32))
def test_a_plan_comes_back_from_its_cells(problem: Problem, seed: int) -> None:
    plan = plan_of(problem, random_orders(problem.instance(), seed))
    again = check(to_plan(read(write(from_plan(plan))), problem))
    assert again.plan_id == plan.plan_id


def test_torch_reads_what_is_written(tmp_path: Path) -> None:
    plan = random_plan(v_shape(2), 4, seed=1)
    (tmp_path / "plan.csv").write_text(write(from_plan(plan)))
    schedule = torchs_own("ZBVZeroBubble", 2, 4)
    schedule._load_csv(str(tmp_path / "plan.csv"))
    found = [[str(action) for action in row if action is not None] for row in schedule.pipeline_order.values()]
    assert found == list(csv.reader((tmp_path / "plan.csv").read_text().splitlines()))


def test_torchs_schedule_becomes_a_legal_plan(tmp_path: Path) -> None:
    torchs_own("ZBVZeroBubble", 2, 4)._dump_csv(tmp_path / "torch.csv", format="compute_comms")
    plan = to_plan(read((tmp_path / "torch.csv").read_text()), problem_of(v_shape(2), 4))
    assert check(plan).placement == v_shape(2)


def test_our_b_is_torchs_i_and_spaces_do_not_matter() -> None:
    assert read("0F0, 0I0 ,,0W0,0B1\n") == [[Cell("F", 0, 0), Cell("B", 0, 0), None, Cell("W", 0, 0), Cell("BW", 0, 1)]]
    assert read(" (0F3;1B2)OVERLAP_F_B ,0UNSHARD") == [
        [Cell("OVERLAP_F_B", -1, None, (Cell("F", 0, 3), Cell("BW", 1, 2))), Cell("UNSHARD", 0)]
    ]


@pytest.mark.parametrize(
    "cell",
    [
        "0F0junk",
        "F0",
        "0F",
        "0X0",
        "-1F0",
        "0F-1",
        "0UNSHARD1",
        "()OVERLAP_F_B",
        "(0F0;x)OVERLAP_F_B",
        "0F0 0B0",
        "0F٣",
    ],
)
def test_junk_is_refused_with_rank_and_column(cell: str) -> None:
    with pytest.raises(InvalidInputError, match=r"rank 1, column 2: found .*; needed a cell such as 2F0"):
        read(f"0F0\n1F0,1B0,{cell}\n")


def test_an_empty_file_is_refused() -> None:
    with pytest.raises(InvalidInputError, match="rank 0: found nothing"):
        read("")


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("0F0,0F0,0B0\n1F0,1B0", r"rank 0, column 1: found 0F0; needed each op once: it stands at rank 0, column 0"),
        ("0F0,0I0,0W0,0B0\n1F0,1B0", r"rank 0, column 3: found 0B0; needed each op once"),
        ("0F0,0B0\n1F0,1B0,0F1", r"rank 1, column 2: found 0F1; needed a stage below 2 and a microbatch below 1"),
        ("0F0\n1F0,1B0,0B0", r"rank 1, column 2: found 0B0; needed stage 0 on one rank: rank 0 runs it too"),
        ("0F0,0B0\n1F0", r"found no 1B0; needed every op of every microbatch"),
        ("0F0,0I0\n1F0,1B0", r"found no 0W0; needed every op"),
        ("0F0,0B0,1F0,1B0", r"\$.devices: found 1 ranks; needed 2, one per device"),
        ("(0F0;0B0)OVERLAP_F_B\n1F0,1B0", r"rank 0, column 0: found \(0F0;0B0\)OVERLAP_F_B; needed ops that run one"),
    ],
)
def test_orders_that_are_not_of_the_problem_are_named(text: str, message: str) -> None:
    with pytest.raises(InvalidInputError, match=message):
        to_plan(read(text), problem_of(linear(2), 1))
