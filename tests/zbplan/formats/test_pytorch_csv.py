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

from runtime_client import reference_step
from runtime_client.lowering import lower
from tests.processes import torchrun
from tests.runtime_client.models import batch, mean_loss, text_stages
from tests.runtime_client.plans import one_f_one_b, plan_of, problem_of, random_plan
from tests.strategies import problems, random_orders
from tests.zbplan.formats.torch_csv_worker import LAYOUTS, MICROBATCHES, PLANS
from zbplan.errors import InvalidInputError
from zbplan.formats.pytorch_csv import Cell, check_runs, from_actions, from_plan, lost, read, to_plan, write
from zbplan.instance import Orders
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


def test_sends_and_receives_stand_where_they_are_given_and_each_stage_is_gathered_and_reduced_once() -> None:
    (first, second) = write(from_actions(lower(one_f_one_b(2, 2)))).splitlines()
    assert first == "0UNSHARD,0F0,0SEND_F0,0F1,0SEND_F1,0RECV_B0,0B0,0RECV_B1,0B1,0REDUCE_GRAD,0RESHARD"
    assert second == ("1RECV_F0,1UNSHARD,1F0,1RECV_F1,1B0,1SEND_B0,1F1,1B1,1REDUCE_GRAD,1RESHARD,1SEND_B1")


@pytest.fixture(scope="module")
def trained(tmp_path_factory: pytest.TempPathFactory) -> list[dict[str, dict[str, torch.Tensor]]]:
    """What each of two ranks has as gradients after a step in torch's own runtime."""
    folder = tmp_path_factory.mktemp("ranks")
    run = torchrun(2, "tests.zbplan.formats.torch_csv_worker", str(folder))
    assert run.returncode == 0, run.output
    return [torch.load(path, weights_only=True) for path in sorted(folder.glob("*.pt"))]


@pytest.mark.parametrize(("name", "layout"), list(product(PLANS, LAYOUTS)))
def test_torch_trains_from_what_is_written(
    trained: list[dict[str, dict[str, torch.Tensor]]], name: str, layout: str
) -> None:
    check_runs(PLANS[name])
    stages = text_stages(PLANS[name].requires.stages)
    tokens, target = batch(2 * MICROBATCHES)
    reference_step(stages, PLANS[name], mean_loss, tokens, target=target)
    found = trained[0][f"{name}, {layout}"] | trained[1][f"{name}, {layout}"]
    needed = {f"{at}.{name}": value.grad for at, stage in enumerate(stages) for name, value in stage.named_parameters()}
    torch.testing.assert_close(found, needed)


def test_a_plan_whose_losses_torch_would_take_for_those_of_others_is_refused() -> None:
    problem = problem_of(linear(1), 3)
    code = problem.instance().code
    ops = [code(kind, 0, microbatch) for kind in (0, 3) for microbatch in (0, 2, 1)]
    plan = plan_of(problem, Orders.of([ops]))
    with pytest.raises(InvalidInputError) as caught:
        check_runs(plan)
    (finding,) = caught.value.findings
    assert finding.path == "$.devices[0].microbatch[1]"
    assert finding.found == "F of the last stage on microbatch 2 where 1 would be next"


def test_what_a_plan_counts_on_and_the_csv_does_not_say_is_told() -> None:
    problem = problem_of(linear(2), 2)
    fused = one_f_one_b(2, 2)
    assert list(lost(fused)) == []
    split = random_plan(linear(2), 2, seed=0)
    assert ["dw_builder=runtime_client.split(module)" in sentence for sentence in lost(split)] == [True]
    post = plan_of(problem.model_copy(update={"optimizer": "post_validated"}), fused.orders())
    (sentence,) = lost(post)
    assert sentence.startswith(f"the plan's {post.metrics.iteration_ms:g} ms count on a post-validated optimizer")


def test_a_csv_is_not_read_where_it_is_open_how_layers_are_cut() -> None:
    layers = {"count": 2, "t_f_ms": 1, "t_b_ms": 1, "t_w_ms": 1, "m_b_bytes": 1, "m_w_bytes": 1}
    profile = {"stages": 1, **{name: 1 for name in layers if name != "count"}, "t_comm_ms": 0, "layers": layers}
    problem = Problem.parse({"profile": profile, "devices": 2, "microbatches": 1})
    with pytest.raises(InvalidInputError, match=r"needed the problem of the cut that the CSV was made for"):
        to_plan(read("0F0,0B0\n1F0,1B0\n"), problem)
