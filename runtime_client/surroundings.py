"""What an iteration changes beside weights and gradients: random number generators, and buffers such as BatchNorm's."""

from __future__ import annotations

import random
from collections.abc import Sequence

import numpy as np
import torch
from torch import nn


class Surroundings:
    """The state of generators and buffers at one time, to be brought back to the last bit."""

    def __init__(self, modules: Sequence[nn.Module], device: torch.device) -> None:
        self._device = device
        self._python, self._numpy, self._cpu = random.getstate(), np.random.get_state(), torch.get_rng_state()
        self._accelerator = None if device.type == "cpu" else torch.get_device_module(device).get_rng_state(device)
        self._buffers = [
            (owner, name, buffer, buffer.detach().clone())
            for module in modules
            for owner in module.modules()
            for name, buffer in owner.named_buffers(recurse=False)
        ]

    @torch.no_grad()
    def restore(self) -> None:
        """Bring the state back."""
        random.setstate(self._python)
        np.random.set_state(self._numpy)
        torch.set_rng_state(self._cpu)
        if self._accelerator is not None:
            torch.get_device_module(self._device).set_rng_state(self._accelerator, self._device)
        for owner, name, buffer, saved in self._buffers:
            buffer.copy_(saved)
            setattr(owner, name, buffer)
