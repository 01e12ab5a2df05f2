from __future__ import annotations

import random

import numpy as np
import pytest
import torch
from torch import nn

from runtime_client.surroundings import Surroundings

CPU = torch.device("cpu")


def draw() -> tuple[float, float, float]:
    return random.random(), float(np.random.rand()), float(torch.rand(()))


def test_all_generators_draw_the_same_again() -> None:
    start = Surroundings([], CPU)
    drawn = draw()
    assert draw() != drawn
    start.restore()
    assert draw() == drawn


@pytest.mark.parametrize("assigned", [False, True])
def test_buffers_come_back_whether_changed_in_place_or_replaced(assigned: bool) -> None:
    module = nn.Sequential(nn.Linear(2, 2), nn.BatchNorm1d(2))
    norm = module[1]
    mean = norm.running_mean
    start = Surroundings([module], CPU)
    if assigned:
        norm.running_mean = torch.ones(2)
    module(torch.randn(4, 2))
    assert norm.num_batches_tracked == 1
    start.restore()
    assert norm.running_mean is mean
    assert torch.equal(norm.running_mean, torch.zeros(2))
    assert norm.num_batches_tracked == 0
