"""Hooks that make sure of the last step before anybody sees weights or moments: saving, loading, evaluating."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from typing import Any

from torch import nn, optim


def settle_before_reading(optimizer: optim.Optimizer, modules: Iterable[nn.Module], settle: Callable[[], None]) -> None:
    """Call ``settle`` before a state dict of the optimizer or a module is taken or loaded, and before each forward."""

    # A plain function, so that a deep copy of a module takes it along as it is.
    def hook(*ignored: Any, **also_ignored: Any) -> None:
        settle()

    optimizer.register_state_dict_pre_hook(hook)
    optimizer.register_load_state_dict_pre_hook(hook)
    for module in modules:
        module.register_forward_pre_hook(hook)
        for part in module.modules():
            part.register_state_dict_pre_hook(hook)
            part.register_load_state_dict_pre_hook(hook)
