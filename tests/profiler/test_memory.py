import pytest
import torch
from torch import nn

from profiler.memory import StorageMeter, meter_for, state_after_a_step, state_of, static_bytes, total_bytes


def test_a_storage_counts_once_and_until_it_is_freed() -> None:
    with StorageMeter() as meter:
        x = torch.empty(100)
        views = [x[:10], x.reshape(10, 10), x.detach()]
        assert meter.live_bytes() == 400
        del x
        assert meter.live_bytes() == 400
        del views
        assert meter.live_bytes() == 0


def test_what_stood_before_is_not_counted() -> None:
    before = torch.zeros(100)
    with StorageMeter() as meter:
        view = before[:50]
        before.add_(1)
        torch.add(view, 1, out=view)
        assert meter.live_bytes() == 0


def test_peak_is_since_the_last_reading() -> None:
    with StorageMeter() as meter:
        x = torch.zeros(100)
        (x + 1).sum()
        assert meter.peak_bytes() == 400 + 400 + 4
        assert meter.peak_bytes() == 400
        assert x.numel() == 100


def test_backward_is_followed_too() -> None:
    linear = nn.Linear(8, 4, bias=False)
    linear.weight.grad = torch.zeros(4, 8)
    with meter_for(torch.device("cpu")) as meter:
        x = torch.ones(2, 8, requires_grad=True)
        linear(x).sum().backward()
        assert meter.live_bytes() == 2 * (2 * 8 * 4)  # x and its gradient; the weight's stood before


def test_total_counts_shared_storage_once() -> None:
    x = torch.zeros(10)
    assert total_bytes({"a": [x, x[:5]], "b": torch.zeros(2, dtype=torch.float64)}) == 40 + 16


def sgd(parameters: list[nn.Parameter]) -> torch.optim.Optimizer:
    return torch.optim.SGD(parameters, lr=0.1)


def momentum(parameters: list[nn.Parameter]) -> torch.optim.Optimizer:
    return torch.optim.SGD(parameters, lr=0.1, momentum=0.9)


@pytest.mark.parametrize(
    ("optimizer", "state_bytes"),
    [(sgd, 0), (momentum, 15 * 4), (torch.optim.Adam, 2 * 15 * 4 + 2 * 4), (torch.optim.Adafactor, None)],
)
def test_static_bytes_are_parameters_gradients_and_optimizer_state(optimizer, state_bytes) -> None:
    linear = nn.Linear(4, 3)  # 15 numbers in two parameters; Adam counts steps in a float each
    before = {name: value.clone() for name, value in linear.state_dict().items()}
    found = static_bytes(linear, state_after_a_step(optimizer))
    assert found == 2 * 15 * 4 + state_bytes if state_bytes is not None else found > 2 * 15 * 4
    assert all(torch.equal(value, before[name]) for name, value in linear.state_dict().items())


def test_frozen_parameters_have_neither_gradient_nor_state() -> None:
    linear = nn.Linear(4, 3).requires_grad_(False)
    assert static_bytes(linear, state_after_a_step(torch.optim.Adam)) == 15 * 4


def test_static_bytes_count_buffers_and_shared_weights_once() -> None:
    module = nn.Sequential(nn.Linear(4, 4, bias=False), nn.Linear(4, 4, bias=False), nn.BatchNorm1d(4, affine=False))
    module[1].weight = module[0].weight
    assert static_bytes(module, state_after_a_step(sgd)) == 2 * 16 * 4 + (2 * 4 * 4 + 8)


def test_a_running_job_shows_its_optimizers_own_state() -> None:
    linear = nn.Linear(4, 3)
    running = torch.optim.Adam(linear.parameters())
    assert static_bytes(linear, state_of(running)) == static_bytes(linear, state_of(None)) == 2 * 15 * 4
    linear(torch.ones(4)).sum().backward()
    running.step()
    assert static_bytes(linear, state_of(running)) == static_bytes(linear, state_after_a_step(torch.optim.Adam))
