from __future__ import annotations

import pytest
import torch
from torch import Tensor, nn

from runtime_client import PlanSchedule, reference_step
from tests.runtime_client.models import batch, mean_loss, on_one_device, sum_loss, text_stages, tupled_stages
from tests.runtime_client.plans import plan_of, problem_of, random_plan
from zbplan.instance import B, F, Orders, W
from zbplan.placement import linear, v_shape
from zbplan.plan import Plan


@pytest.mark.parametrize("build", [text_stages, tupled_stages])
@pytest.mark.parametrize("seed", range(3))
def test_losses_and_gradients_are_those_of_the_model_without_stages(build: object, seed: int) -> None:
    plan, stages, (tokens, target) = random_plan(v_shape(2), 4, seed), build(4), batch(8)
    losses = reference_step(stages, plan, mean_loss, tokens, target=target)
    whole = build(4)
    x: object = (tokens,)
    for stage in whole:
        x = stage(*x)
        x = x if isinstance(x, tuple) else (x,)
    loss = mean_loss(x[0], target)
    loss.backward()
    torch.testing.assert_close(torch.stack(losses).mean(), loss)
    for found, needed in zip(stages, whole, strict=True):
        torch.testing.assert_close(
            [parameter.grad for parameter in found.parameters()], [parameter.grad for parameter in needed.parameters()]
        )


def test_a_sum_is_not_divided() -> None:
    plan, stages, (tokens, target) = random_plan(linear(2), 4, 0), text_stages(2), batch(8)
    reference_step(stages, plan, sum_loss, tokens, target=target, scale_grads=False)
    whole = text_stages(2)
    sum_loss(nn.Sequential(*whole)(tokens), target).backward()
    torch.testing.assert_close(stages[0][0].weight.grad, whole[0][0].weight.grad)


class Scaled(nn.Module):
    """A Linear, whose gradient waits for W, behind a factor, whose gradient does not."""

    def __init__(self) -> None:
        super().__init__()
        self.factor, self.linear = nn.Parameter(torch.ones(1)), nn.Linear(1, 1, bias=False)
        nn.init.ones_(self.linear.weight)

    def forward(self, x: Tensor) -> Tensor:
        return self.linear(self.factor * x)


def first_output(output: Tensor, target: Tensor) -> Tensor:
    return output.sum()


@pytest.mark.usefixtures("alone")
@pytest.mark.parametrize(
    ("b_order", "w_order", "factor", "weight"),
    [((0, 1, 2), (0, 2, 1), 0.0, 1.0), ((0, 2, 1), (0, 1, 2), 1.0, 0.0)],
)
def test_a_weight_adds_up_in_the_order_of_w_and_other_parameters_in_that_of_b(
    b_order: tuple[int, ...], w_order: tuple[int, ...], factor: float, weight: float
) -> None:
    # In float32 1e8 + 1 - 1e8 is 0, and 1e8 - 1e8 + 1 is 1.
    x = torch.tensor([[1e8], [1.0], [-1e8]])
    plan = plan_with(b_order, w_order)
    reference, pipeline = Scaled(), Scaled()
    reference_step([reference], plan, first_output, x, target=x, scale_grads=False)
    PlanSchedule(on_one_device([pipeline]), plan, first_output, scale_grads=False).step(x, target=x)
    for module in (reference, pipeline):
        assert module.factor.grad.item() == factor
        assert module.linear.weight.grad.item() == weight


def plan_with(b_order: tuple[int, ...], w_order: tuple[int, ...]) -> Plan:
    problem = problem_of([[0]], 3)
    code = problem.instance().code
    ops = [(F, 0), (F, 1), (F, 2), *((B, at) for at in b_order), *((W, at) for at in w_order)]
    return plan_of(problem, Orders.of([[code(kind, 0, microbatch) for kind, microbatch in ops]]))


class TwoBiases(nn.Module):
    """Two parameters for which autograd returns one gradient tensor."""

    def __init__(self) -> None:
        super().__init__()
        self.first, self.second = nn.Parameter(torch.zeros(3)), nn.Parameter(torch.zeros(3))

    def forward(self, x: Tensor) -> Tensor:
        return x + (self.first + self.second)


def test_no_two_parameters_share_a_gradient_tensor() -> None:
    module = TwoBiases()
    x = torch.ones(3, 3)
    reference_step([module], random_plan([[0]], 3, 0), first_output, x, target=x, scale_grads=False)
    module.first.grad.zero_()
    assert torch.equal(module.second.grad, torch.full((3,), 3.0))
