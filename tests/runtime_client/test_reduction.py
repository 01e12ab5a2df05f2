from __future__ import annotations

import pytest
import torch
import torch.distributed as dist
from torch import Tensor, nn

from runtime_client import JobMismatchError, PlanSchedule, reference_step
from runtime_client.lowering import Action
from runtime_client.reduction import Reduction, Tail
from runtime_client.weight_grad_store import WeightGradStore
from tests.processes import Finished, torchrun
from tests.runtime_client.data_parallel_worker import CASES, PLANS, STEPS, half
from tests.runtime_client.models import mean_loss, on_one_device, text_stages
from tests.runtime_client.plans import random_plan


@pytest.fixture(scope="module")
def trained(tmp_path_factory: pytest.TempPathFactory) -> tuple[Finished, list[dict[str, dict[str, Tensor]]]]:
    folder = tmp_path_factory.mktemp("ranks")
    run = torchrun(4, "tests.runtime_client.data_parallel_worker", str(folder))
    return run, [torch.load(path, weights_only=True) for path in sorted(folder.glob("*.pt"))]


def in_one_process(name: str) -> dict[str, Tensor]:
    """Return the gradients of both halves of the batch, averaged."""
    plan, build = PLANS[name]
    stages = build(plan.requires.stages)
    for step in range(STEPS):
        for replica in range(2):
            tokens, target = half(step, replica)
            reference_step(stages, plan, mean_loss, tokens, target=target)
    return {
        f"{index}.{name}": parameter.grad / 2
        for index, stage in enumerate(stages)
        for name, parameter in stage.named_parameters()
    }


@pytest.mark.parametrize(("name", "way"), CASES)
def test_two_pipelines_get_the_gradients_of_one_process(
    trained: tuple[Finished, list[dict[str, dict[str, Tensor]]]], name: str, way: str
) -> None:
    run, ranks = trained
    assert run.returncode == 0, run.output
    needed = in_one_process(name)
    for replica in range(2):
        found = ranks[2 * replica][f"{name}, {way}"] | ranks[2 * replica + 1][f"{name}, {way}"]
        assert found.keys() == needed.keys()
        for key, gradient in needed.items():
            assert (found[key] - gradient).norm() <= 1e-6 * gradient.norm()


@pytest.mark.parametrize("name", PLANS)
def test_overlapping_changes_no_bit(trained: tuple[Finished, list[dict[str, dict[str, Tensor]]]], name: str) -> None:
    run, ranks = trained
    assert run.returncode == 0, run.output
    for kept in ranks:
        waiting, overlapped = kept[f"{name}, all_reduce"], kept[f"{name}, overlapped"]
        assert all(torch.equal(overlapped[key], gradient) for key, gradient in waiting.items())


class Noted(Reduction):
    """Keeps what is started, in order, with the number of uses that its gradient has seen by then."""

    def __init__(self, module: nn.Module, started: list[tuple[str, float]]) -> None:
        super().__init__([module], dist.group.WORLD)
        self.names = {parameter: name for name, parameter in module.named_parameters()}
        self.started = started

    def _start(self, parameters: object) -> None:
        for parameter in parameters:
            if parameter not in self._works:
                self.started.append(
                    (self.names[parameter], 0.0 if parameter.grad is None else parameter.grad.max().item())
                )
                super()._start([parameter])


@pytest.mark.usefixtures("alone")
def test_each_parameter_is_started_as_soon_as_its_last_w_is_done() -> None:
    module, store, started = nn.Sequential(nn.Linear(1, 1), nn.LayerNorm(1), nn.Linear(1, 1)), WeightGradStore(), []
    store.attach(module)
    ops = [
        Action("B", 0, 0),
        Action("W", 0, 0),
        Action("B", 0, 1),
        Action("B", 0, 2),
        Action("W", 0, 2),
        Action("W", 0, 1),
    ]
    tail = Tail(ops, {0: module}, Noted(module, started))
    uses = {}
    for op in ops:
        if op.kind == "B":
            with store.recording():
                module(torch.ones(1, 1)).sum().backward()
            uses[op.microbatch] = store.take_uses()
        else:
            tail.run(op, uses[op.microbatch])
        tail.ended(op)
        if op == ops[1]:
            assert module[2].bias.grad == 1
        if op == ops[-2]:
            assert started == []
            assert module[2].bias.grad == 1
    names = [name for name, _ in started]
    assert names[:2] == ["1.weight", "1.bias"]
    assert set(names[2:4]) == {"2.weight", "2.bias"}
    assert sorted(names) == sorted(name for name, _ in module.named_parameters())
    assert dict(started)["2.bias"] == 3


@pytest.mark.usefixtures("alone")
def test_a_parameter_without_gradient_takes_part_with_zeros_and_a_frozen_one_does_not() -> None:
    module = nn.Linear(2, 2)
    module.bias.requires_grad_(False)
    reduction = Reduction([module], dist.group.WORLD)
    reduction.finish()
    assert torch.equal(module.weight.grad, torch.zeros(2, 2))
    assert module.bias.grad is None


@pytest.mark.usefixtures("alone")
def test_overlapping_needs_a_group() -> None:
    with pytest.raises(JobMismatchError, match="found overlap_grad_reduce without a group to reduce over"):
        PlanSchedule(on_one_device(text_stages(1)), random_plan([[0]], 2, 0), mean_loss, overlap_grad_reduce=True)
