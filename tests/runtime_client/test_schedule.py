from __future__ import annotations

import signal
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch

from runtime_client import reference_step
from tests.runtime_client.cases import STEPS, Case, cases, optimizer_of, snapshot
from tests.runtime_client.processes import Finished, together, torchrun

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


def in_one_process(case: Case) -> tuple[list[torch.Tensor], dict[str, torch.Tensor]]:
    stages, losses = case.build(), []
    optimizer = optimizer_of(stages)
    for step in range(STEPS):
        tokens, target = case.batch(step)
        optimizer.zero_grad()
        losses += reference_step(stages, case.plan, case.loss_fn, tokens, target=target, scale_grads=case.mean)
        optimizer.step()
    return losses, snapshot(dict(enumerate(stages)))


@pytest.mark.usefixtures("one_thread")
@pytest.mark.parametrize(("ranks", "name"), [(ranks, name) for ranks in (1, 2, 4) for name in cases(ranks)])
def test_losses_gradients_and_weights_are_those_of_one_process_bit_for_bit(
    trained: Callable[[int], Run], ranks: int, name: str
) -> None:
    run, folder = trained(ranks)
    assert run.returncode == 0, run.output
    case = cases(ranks)[name]
    losses, tensors = in_one_process(case)
    kept: list[dict[str, Any]] = [torch.load(folder / f"{rank}.pt", weights_only=True)[name] for rank in range(ranks)]
    holder = next(at for at, held in enumerate(case.plan.placement) if case.plan.requires.stages - 1 in held)
    assert [len(rank["losses"]) for at, rank in enumerate(kept) if at != holder] == [0] * (ranks - 1)
    assert torch.equal(torch.stack(kept[holder]["losses"]), torch.stack(losses))
    found = {key: tensor for rank in kept for key, tensor in rank["tensors"].items()}
    assert found.keys() == tensors.keys()
    assert [key for key, tensor in tensors.items() if not torch.equal(found[key], tensor)] == []


def test_a_rank_that_is_killed_ends_the_others_with_a_named_error(tmp_path: Path) -> None:
    worker = ["-m", "tests.runtime_client.dying_worker"]
    ranks = together([[*worker, str(rank), str(tmp_path / "meeting")] for rank in range(3)])
    assert [rank.output.count("stepped") for rank in ranks] == [1, 1, 1]
    assert ranks[1].returncode == -signal.SIGKILL
    for rank in (0, 2):
        assert ranks[rank].returncode == 1
        assert f"StepError: rank {rank}, outside any op: found " in ranks[rank].output
        assert "look for the rank that failed first" in ranks[rank].output
