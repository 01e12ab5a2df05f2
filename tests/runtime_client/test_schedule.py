from __future__ import annotations

import json
import signal
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch

from runtime_client import reference_step
from tests.processes import Finished, together, torchrun
from tests.runtime_client.cases import STEPS, Case, cases, optimizer_of, snapshot

Run = tuple[Finished, Path]


@pytest.fixture(scope="module")
def trained(tmp_path_factory: pytest.TempPathFactory) -> Callable[[int], Run]:
    """All cases of a number of ranks, run in one start of the processes, and where each rank kept what came out."""
    runs: dict[int, Run] = {}

    def train(ranks: int) -> Run:
        if ranks not in runs:
            folder = tmp_path_factory.mktemp("ranks")
            runs[ranks] = torchrun(ranks, "tests.runtime_client.parity_worker", str(folder)), folder
        return runs[ranks]

    return train


def in_one_process(case: Case) -> dict[str, Any]:
    stages, losses = case.build(), []
    optimizer = optimizer_of(stages)
    for step in range(STEPS):
        tokens, target = case.batch(step)
        optimizer.zero_grad()
        losses += reference_step(stages, case.plan, case.loss_fn, tokens, target=target, scale_grads=case.mean)
        optimizer.step()
    kept = {"losses": losses, "tensors": snapshot(dict(enumerate(stages)), optimizer)}
    tokens, target = (part.chunk(case.plan.requires.microbatches) for part in case.batch(STEPS))
    with torch.no_grad():
        outputs = [forward(stages, rows) for rows in tokens]
    evaluated = [case.loss_fn(*pair) for pair in zip(outputs, target, strict=True)]
    return kept | {"outputs": torch.cat(outputs), "evaluated": evaluated}


def forward(stages: list[torch.nn.Module], x: Any) -> torch.Tensor:
    for stage in stages:
        x = stage(*x) if isinstance(x, tuple) else stage(x)
    return x


@pytest.mark.usefixtures("one_thread")
@pytest.mark.parametrize(("ranks", "name"), [(ranks, name) for ranks in (1, 2, 4) for name in cases(ranks)])
def test_losses_gradients_and_weights_are_those_of_one_process_bit_for_bit(
    trained: Callable[[int], Run], ranks: int, name: str
) -> None:
    run, folder = trained(ranks)
    assert run.returncode == 0, run.output
    case = cases(ranks)[name]
    needed = in_one_process(case)
    kept: list[dict[str, Any]] = [torch.load(folder / f"{rank}.pt", weights_only=True)[name] for rank in range(ranks)]
    holder = next(at for at, held in enumerate(case.plan.placement) if case.plan.requires.stages - 1 in held)
    assert [len(rank["losses"]) for at, rank in enumerate(kept) if at != holder] == [0] * (ranks - 1)
    for part in ("losses", "evaluated"):
        assert torch.equal(torch.stack(kept[holder][part]), torch.stack(needed[part]))
    assert torch.equal(kept[holder]["outputs"], needed["outputs"])
    found = {key: tensor for rank in kept for key, tensor in rank["tensors"].items()}
    assert found.keys() == needed["tensors"].keys()
    assert [key for key, tensor in needed["tensors"].items() if not torch.equal(found[key], tensor)] == []


def test_a_rank_that_is_killed_ends_the_others_with_a_named_error(tmp_path: Path) -> None:
    worker = ["-m", "tests.runtime_client.dying_worker"]
    ranks = together([[*worker, str(rank), str(tmp_path / "meeting")] for rank in range(3)])
    assert [rank.output.count("stepped") for rank in ranks] == [1, 1, 1]
    assert ranks[1].returncode == -signal.SIGKILL
    for rank in (0, 2):
        assert ranks[rank].returncode == 1
        assert f"StepError: rank {rank}, outside any op: found " in ranks[rank].output
        assert "look for the rank that failed first" in ranks[rank].output


def test_a_tensor_of_another_shape_between_ranks_is_named_where_it_is_sent(tmp_path: Path) -> None:
    worker = ["-m", "tests.runtime_client.shrinking_worker"]
    sender, receiver = together([[*worker, str(rank), str(tmp_path / "meeting")] for rank in range(2)])
    assert [sender.returncode, receiver.returncode] == [1, 1]
    assert [sender.output.count("stepped"), receiver.output.count("stepped")] == [1, 1]
    assert (
        "OpError: rank 0, SEND_F(stage 0, microbatch 0): found TransferShapeError: found [2, 4, 8] torch.float32; "
        "needed [2, 5, 8] torch.float32, as in the first microbatch: pad to a fixed shape"
    ) in sender.output
    assert "StepError: rank 1, outside any op: found " in receiver.output


@pytest.fixture(scope="module")
def memory(tmp_path_factory: pytest.TempPathFactory) -> list[dict[str, Any]]:
    """What two ranks found of the memory that steps take."""
    folder = tmp_path_factory.mktemp("ranks")
    run = torchrun(2, "tests.runtime_client.memory_worker", str(folder))
    assert run.returncode == 0, run.output
    return [json.loads((folder / f"{rank}.json").read_text()) for rank in range(2)]


def test_memory_does_not_grow_with_the_number_of_microbatches(memory: list[dict[str, Any]]) -> None:
    activation_bytes = 4 * 16 * 64
    for rank in memory:
        few, *more = rank["by_microbatches"]
        assert max(more) < few + activation_bytes


@pytest.mark.parametrize("method", ["1f1b", "zb_h1", "zb_h2"])
def test_memory_is_what_the_plan_predicts_with_transfers(memory: list[dict[str, Any]], method: str) -> None:
    for rank in memory:
        measured, predicted = rank["against_plans"][method]
        assert 0.8 * predicted < measured <= 1.005 * predicted
