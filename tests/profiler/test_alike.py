from __future__ import annotations

import pytest
import torch
from torch import Tensor, nn

from profiler.alike import likeness
from profiler.microbatch import Stage


class Scaled(nn.Linear):
    def __init__(self, width: int, scale: object) -> None:
        super().__init__(width, width)
        self.scale = scale


def of(module: nn.Module, inputs: Tensor | None = None, loss=None) -> object:
    return likeness(Stage(0, module, (torch.ones(4) if inputs is None else inputs,), loss))


@pytest.mark.parametrize(
    "build",
    [lambda: nn.Linear(4, 4), lambda: Scaled(4, [1, {"a": 2.0}]), lambda: nn.Sequential(nn.Dropout(0.5), nn.GELU())],
)
def test_modules_built_alike_are_alike(build) -> None:
    assert of(build()) == of(build())
    assert hash(of(build())) == hash(of(build()))


@pytest.mark.parametrize(
    ("left", "right"),
    [
        (nn.Linear(4, 4), nn.Linear(4, 5)),
        (nn.Linear(4, 4), nn.Linear(4, 4, bias=False)),
        (nn.Linear(4, 4), nn.Linear(4, 4, dtype=torch.bfloat16)),
        (nn.Linear(4, 4), nn.Linear(4, 4).requires_grad_(False)),
        (nn.Linear(4, 4), Scaled(4, None)),
        (Scaled(4, 1), Scaled(4, 2)),
        (Scaled(4, 1), Scaled(4, True)),
        (Scaled(4, object()), Scaled(4, object())),
        (Scaled(4, bytearray(1)), Scaled(4, bytearray(1))),
        (nn.Dropout(0.1), nn.Dropout(0.2)),
        (nn.Dropout(0.1), nn.Dropout(0.1).eval()),
        (nn.GELU(), nn.GELU(approximate="tanh")),
    ],
)
def test_any_difference_makes_unlike(left: nn.Module, right: nn.Module) -> None:
    assert of(left) != of(right)


def test_what_reaches_it_and_the_loss_count_too() -> None:
    module = nn.Linear(4, 4)
    assert of(module) != of(module, torch.ones(2, 4))
    assert of(module) != of(module, torch.ones(4, requires_grad=True))
    assert of(module) != of(module, loss=torch.sum)
