from __future__ import annotations

import copy
from collections.abc import Callable
from typing import Any

import pytest
import torch
from torch import nn, optim

from runtime_client.settling_hooks import settle_before_reading

Use = Callable[[nn.Module, optim.Optimizer], Any]


@pytest.mark.parametrize(
    "use",
    [
        lambda module, optimizer: optimizer.state_dict(),
        lambda module, optimizer: optimizer.load_state_dict(optim.SGD(module.parameters(), lr=1).state_dict()),
        lambda module, optimizer: module.state_dict(),
        lambda module, optimizer: nn.ModuleList([module]).state_dict(),
        lambda module, optimizer: module[0].state_dict(),
        lambda module, optimizer: module[0].load_state_dict(nn.Linear(2, 2).state_dict()),
        lambda module, optimizer: module(torch.ones(1, 2)),
    ],
    ids=["save optimizer", "load optimizer", "save", "save with others", "save a part", "load a part", "evaluate"],
)
def test_whoever_reads_or_writes_weights_or_moments_is_preceded(use: Use) -> None:
    module = nn.Sequential(nn.Linear(2, 2))
    optimizer, calls = optim.SGD(module.parameters(), lr=1), []
    settle_before_reading(optimizer, [module], lambda: calls.append(1))
    assert calls == []
    use(module, optimizer)
    assert calls


def test_a_deep_copy_of_a_module_can_be_made_and_used() -> None:
    module = nn.Sequential(nn.Linear(2, 2))
    settle_before_reading(optim.SGD(module.parameters(), lr=1), [module], torch.Generator().seed)
    copied = copy.deepcopy(module)
    assert torch.equal(copied(torch.ones(1, 2)), module(torch.ones(1, 2)))
