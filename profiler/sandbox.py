"""Running a module's microbatches without a trace: gradients, buffers and random numbers stay as they are."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager

import torch
from torch import nn

SEED = 20241


@contextmanager
def untouched(module: nn.Module) -> Iterator[None]:
    """Inside the block a module has no gradients yet, and the same random numbers are drawn in every such block."""
    parameters = list(module.parameters())
    gradients = [parameter.grad for parameter in parameters]
    buffers = [(buffer, buffer.clone()) for buffer in module.buffers()]
    cuda = sorted({parameter.device.index for parameter in parameters if parameter.device.type == "cuda"})
    for parameter in parameters:
        parameter.grad = None
    with torch.random.fork_rng(devices=cuda):
        torch.manual_seed(SEED)
        try:
            yield
        finally:
            for parameter, gradient in zip(parameters, gradients, strict=True):
                parameter.grad = gradient
            with torch.no_grad():
                for buffer, value in buffers:
                    buffer.copy_(value)
