from __future__ import annotations

import pytest
import torch
from torch import nn, optim

from runtime_client import OptimizerUseError, master_weights
from runtime_client.weights import Weights


def stages() -> list[nn.Module]:
    """Two stages that share a weight."""
    torch.manual_seed(0)
    built = [nn.Sequential(nn.Linear(3, 3), nn.LayerNorm(3)), nn.Sequential(nn.Linear(3, 3))]
    built[1][0].weight = built[0][0].weight
    return built


def parameters_of(modules: list[nn.Module]) -> list[nn.Parameter]:
    return list(nn.ModuleList(modules).parameters())


def test_gradients_come_by_stage_in_the_order_of_parameters_and_shared_ones_once() -> None:
    modules = stages()
    parameters = parameters_of(modules)
    for parameter in parameters[::-1]:
        parameter.grad = torch.ones_like(parameter)
    weights = Weights(optim.SGD(parameters[::-1], lr=1), modules)
    found = weights.gradients({1: modules[1], 0: modules[0]})
    assert list(found) == [0, 1]
    assert list(map(id, found[0])) == [id(parameter.grad) for parameter in modules[0].parameters()]
    assert list(map(id, found[1])) == [id(modules[1][0].bias.grad)]


def test_gradients_that_another_rank_counts_and_those_that_are_not_there_are_left_out() -> None:
    modules = stages()
    modules[0][0].weight.grad, modules[1][0].bias.grad = torch.ones(3, 3), torch.ones(3)
    weights = Weights(optim.SGD(parameters_of(modules), lr=1), modules)
    found = weights.gradients(dict(enumerate(modules)), skip=[modules[0][0].weight])
    assert [list(map(id, gradients)) for gradients in found.values()] == [[], [id(modules[1][0].bias.grad)]]


def test_gradients_of_what_the_optimizer_does_not_step_do_not_count() -> None:
    modules = stages()
    for parameter in parameters_of(modules):
        parameter.grad = torch.ones_like(parameter)
    weights = Weights(optim.SGD(modules[1].parameters(), lr=1), modules)
    assert {stage: len(gradients) for stage, gradients in weights.gradients(dict(enumerate(modules))).items()} == {
        0: 1,
        1: 1,
    }


def test_a_weight_of_no_stage_is_refused() -> None:
    modules, stranger = stages(), nn.Parameter(torch.zeros(4, 2))
    with pytest.raises(OptimizerUseError, match=r"found a weight of shape \(4, 2\).*needed the stages' own parameters"):
        Weights(optim.SGD([*parameters_of(modules), stranger], lr=1), modules)


def test_masters_are_of_float32_where_the_weight_is_not_and_the_weight_itself_elsewhere() -> None:
    low, full, frozen = nn.Parameter(torch.ones(2).bfloat16()), nn.Parameter(torch.ones(2)), nn.Parameter(torch.ones(2))
    frozen.requires_grad_(False)
    masters = master_weights([low, full, frozen])
    assert list(masters) == [low, full]
    assert masters[low].dtype == torch.float32
    assert masters[full] is full


def test_masters_are_stepped_by_the_full_precision_of_a_scaled_gradient() -> None:
    module = nn.Linear(2, 1, bias=False).to(torch.bfloat16)
    masters = master_weights(module.parameters())
    weights = Weights(optim.SGD(masters.values(), lr=1.0), [module], masters)
    module.weight.grad = torch.ones_like(module.weight)
    before = masters[module.weight].detach().clone()
    weights.step(1 / 3)
    after = masters[module.weight]
    assert torch.equal(after, before - torch.tensor(1 / 3))
    assert torch.equal(module.weight, after.bfloat16())
    assert torch.equal(module.weight.grad, torch.ones_like(module.weight))
    assert after.grad is None


@pytest.mark.parametrize("set_to_none", [True, False])
def test_gradients_of_low_precision_copies_are_cleared_like_others(set_to_none: bool) -> None:
    module = nn.Linear(2, 1, bias=False).to(torch.bfloat16)
    masters = master_weights(module.parameters())
    weights = Weights(optim.SGD(masters.values(), lr=1.0), [module], masters)
    weights.zero_grad(set_to_none)
    assert module.weight.grad is None
    module.weight.grad = torch.ones_like(module.weight)
    weights.zero_grad(set_to_none)
    assert module.weight.grad is None if set_to_none else torch.equal(module.weight.grad, torch.zeros(1, 2).bfloat16())


def test_a_scale_of_1_leaves_gradients_alone_and_a_nan_spoils_them() -> None:
    module = nn.Linear(2, 1, bias=False)
    weights = Weights(optim.SGD(module.parameters(), lr=0.0), [module])
    module.weight.grad = torch.ones(1, 2)
    version = module.weight.grad._version
    weights.step()
    assert module.weight.grad._version == version
    weights.step(float("nan"))
    assert module.weight.grad.isnan().all()


def test_a_backward_does_not_see_weights_change_inside_the_block() -> None:
    module = nn.Sequential(nn.Linear(2, 2), nn.Linear(2, 2))
    weights = Weights(optim.SGD(module.parameters(), lr=0.1), [module])
    for hidden in (True, False):
        loss = module(torch.ones(1, 2)).sum()
        for weight in weights:
            weight.used.grad = torch.ones_like(weight.used)
        if hidden:
            with weights.unseen_by_autograd():
                weights.step()
            loss.backward()
    weights.step()
    with pytest.raises(RuntimeError, match="modified by an inplace operation"):
        loss.backward()
