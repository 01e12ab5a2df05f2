from __future__ import annotations

import math

import pytest
import torch
import torch.distributed as dist
from torch import nn
from torch.distributed.device_mesh import init_device_mesh
from torch.distributed.tensor import DTensor, Partial, Replicate, Shard

from runtime_client import OptimizerUseError, gradient_state
from runtime_client.gradient_state import GradientState, global_norm, own_part, state_of


def states_of_norms(norms: list[float], norm_type: float) -> list[GradientState]:
    return [state_of({stage: [torch.tensor([norm])]}, norm_type) for stage, norm in enumerate(norms)]


@pytest.mark.parametrize(("norm_type", "norm"), [(2.0, 5.0), (math.inf, 4.0), (1.0, 7.0)])
def test_the_norm_of_stages_is_exact(norm_type: float, norm: float) -> None:
    assert global_norm(states_of_norms([3, 4, 0, 0], norm_type), norm_type) == norm


@pytest.mark.parametrize("norm_type", [1.0, 2.0, 3.0, math.inf])
@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16, torch.float64])
def test_the_norm_is_that_of_torch(norm_type: float, dtype: torch.dtype) -> None:
    torch.manual_seed(0)
    gradients = [torch.randn(shape).to(dtype) for shape in [(5, 6), (7,), (), (0, 3), (2, 3, 4)]]
    needed = nn.utils.get_total_norm([gradient.double() for gradient in gradients if gradient.numel()], norm_type)
    found = global_norm([state_of({0: gradients[:2], 1: gradients[2:]}, norm_type)], norm_type)
    assert found == pytest.approx(float(needed))


def test_what_ranks_hold_of_which_stage_does_not_change_a_bit() -> None:
    torch.manual_seed(0)
    stages = {stage: [torch.randn(40, 3), torch.randn(7)] for stage in range(6)}
    placements = [[[0, 1, 2, 3, 4, 5]], [[0, 5], [1, 4], [2, 3]], [[3], [0], [5], [1], [2], [4]]]
    norms = {
        global_norm([state_of({stage: stages[stage] for stage in held}, 2.0) for held in placement], 2.0)
        for placement in placements
    }
    assert len(norms) == 1


def test_sums_are_of_double_precision_and_in_order() -> None:
    # One by one, 1e16 swallows a 1; two ones together it does not.
    ones_last = [torch.tensor([1e8]), torch.tensor([1.0]), torch.tensor([1.0])]
    assert state_of({0: ones_last}, 2.0).parts[0] == 1e16
    assert state_of({0: ones_last[::-1]}, 2.0).parts[0] == 1e16 + 2


def test_a_gradient_is_summed_in_pieces_of_a_fixed_size(monkeypatch: pytest.MonkeyPatch) -> None:
    gradient = torch.arange(10.0).reshape(2, 5).t()
    whole = state_of({0: [gradient]}, 2.0)
    monkeypatch.setattr(gradient_state, "PIECE", 3)
    assert state_of({0: [gradient]}, 2.0) == whole
    assert whole.parts == {0: 285.0}


@pytest.mark.parametrize("value", [math.nan, math.inf, -math.inf])
@pytest.mark.parametrize("norm_type", [2.0, math.inf])
@pytest.mark.parametrize("at", range(3))
def test_one_value_that_is_not_finite_is_found(value: float, norm_type: float, at: int) -> None:
    gradient = torch.tensor([1.0, 2.0, 3.0])
    gradient[at] = value
    state = state_of({0: [torch.ones(2)], 3: [torch.ones(2), gradient]}, norm_type)
    assert not state.finite
    assert not math.isfinite(global_norm([state], norm_type))
    assert math.isnan(global_norm([state], norm_type)) == math.isnan(value)


def test_gradients_whose_sum_overflows_are_finite() -> None:
    state = state_of({0: [torch.full((3,), 1e200, dtype=torch.float64)]}, 2.0)
    assert state == GradientState({0: math.inf}, finite=True)


def test_no_gradients_have_norm_0() -> None:
    state = state_of({0: [], 1: []}, 2.0)
    assert state == GradientState({0: 0.0, 1: 0.0}, finite=True)


@pytest.mark.parametrize("finite", [True, False])
def test_a_state_survives_its_message(finite: bool) -> None:
    state = GradientState({0: 1 / 3, 7: math.inf}, finite)
    message = state.encode(stages=3)
    assert message.shape == GradientState({}, finite=True).encode(stages=3).shape
    assert GradientState.decode(message) == state


def test_a_plain_gradient_counts_on_one_of_the_ranks_that_have_it() -> None:
    gradient = torch.ones(3)
    assert own_part(gradient, counts_replicas=True) is gradient
    assert own_part(gradient, counts_replicas=False) is None


@pytest.mark.usefixtures("alone")
@pytest.mark.parametrize("placement", [Shard(0), Replicate()])
def test_a_distributed_gradient_counts_by_its_placement(placement: Shard | Replicate) -> None:
    mesh = init_device_mesh("cpu", (dist.get_world_size(),))
    part = own_part(DTensor.from_local(torch.ones(3), mesh, [placement]), counts_replicas=False)
    assert torch.equal(part, torch.ones(3))


@pytest.mark.usefixtures("alone")
def test_a_gradient_that_still_is_to_be_summed_is_refused() -> None:
    mesh = init_device_mesh("cpu", (dist.get_world_size(),))
    with pytest.raises(OptimizerUseError, match=r"shape \(3,\) with placement P.*needed one that is summed"):
        own_part(DTensor.from_local(torch.ones(3), mesh, [Partial()]), counts_replicas=True)
