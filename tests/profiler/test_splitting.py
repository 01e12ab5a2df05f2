from collections.abc import Callable

import pytest
import torch
import torch.distributed as dist
from torch import nn
from torch.nn.parallel import DistributedDataParallel
from torch.utils.checkpoint import checkpoint

from profiler.errors import MeasurementError
from profiler.microbatch import Stage
from profiler.ranks import all_ranks
from profiler.splitting import split_backward
from runtime_client import split
from tests.older_torch import needs_native_split
from tests.profiler.emulated import WIDTH, Emulated


def stage(module: nn.Module, index: int = 1) -> Stage:
    return Stage(index, module, (torch.ones(2, WIDTH, requires_grad=index > 0),))


class Twice(nn.Module):
    """Uses one weight twice."""

    def __init__(self) -> None:
        super().__init__()
        self.inner = nn.Linear(WIDTH, WIDTH)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return self.inner(self.inner(x))


class Checkpointed(Twice):
    """Recomputes its forward, the old way."""

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return checkpoint(super().forward, x, use_reentrant=True)


@pytest.mark.parametrize("mode", ["weight_grad_store", pytest.param("native_split", marks=needs_native_split)])
@pytest.mark.parametrize(
    "build", [lambda: nn.Linear(WIDTH, WIDTH), Twice, lambda: nn.Sequential(nn.Linear(WIDTH, 4), nn.Dropout())]
)
def test_b_and_w_give_the_gradients_of_bw(build: Callable[[], nn.Module], mode: str) -> None:
    module = build()
    there = {name: torch.ones_like(parameter) for name, parameter in module.named_parameters()}
    for name, parameter in module.named_parameters():
        parameter.grad = there[name]
    found = stage(module)
    split_backward(found, mode, split)
    assert found.splits
    assert all(parameter.grad is there[name] for name, parameter in module.named_parameters())


@pytest.mark.parametrize("mode", ["weight_grad_store", "native_split", "fused"])
def test_a_frozen_stage_stays_whole(mode: str) -> None:
    found = stage(nn.Linear(WIDTH, WIDTH).requires_grad_(False))
    split_backward(found, mode, split)
    assert not found.splits


@pytest.mark.parametrize("wrapped", [True, False])
def test_a_compiled_module_is_refused_by_name(wrapped: bool) -> None:
    module = nn.Sequential(nn.Linear(WIDTH, WIDTH), nn.Linear(WIDTH, WIDTH))
    if wrapped:
        module[1] = torch.compile(module[1], backend="eager")
    else:
        module[1].compile(backend="eager")
    with pytest.raises(MeasurementError, match=r"stage 1, module 1 \(.*\): found torch\.compile.*--unsplit 1"):
        split_backward(stage(module), "weight_grad_store", split)


def test_distributed_data_parallel_is_refused() -> None:
    with all_ranks():
        module = DistributedDataParallel(nn.Linear(WIDTH, WIDTH))
        complaint = r"module \(the stage itself\) \(DistributedDataParallel\): found DistributedDataParallel, which"
        with pytest.raises(MeasurementError, match=complaint):
            split_backward(stage(module), "native_split", None)
    assert not dist.is_initialized()


def test_the_native_split_refuses_functions_that_make_weight_gradients() -> None:
    with pytest.raises(MeasurementError, match=r"stage 1, .* found _OpBackward, an autograd\.Function, at parameter"):
        split_backward(stage(nn.Sequential(Emulated())), "native_split", None)


def test_the_native_split_refuses_reentrant_checkpointing() -> None:
    with pytest.raises(MeasurementError, match=r"CheckpointFunctionBackward.*activation checkpointing"):
        split_backward(stage(Checkpointed()), "native_split", None)


def test_a_split_that_loses_a_gradient_is_refused_by_parameter() -> None:
    def careless(module: nn.Module):
        take = split(module)

        def builder():
            take()
            return lambda: None

        return builder

    with pytest.raises(MeasurementError, match=r"parameter 'inner\.weight' of Linear: found no gradient after B and W"):
        split_backward(stage(Twice()), "weight_grad_store", careless)


def test_a_split_that_counts_twice_is_refused_by_parameter() -> None:
    def eager(module: nn.Module):
        take = split(module)

        def builder():
            run = take()

            def twice() -> None:
                run()
                for parameter in module.parameters():
                    parameter.grad *= 2

            return twice

        return builder

    with pytest.raises(MeasurementError, match="'weight' of Linear: found a gradient that is 100% off after B and W"):
        split_backward(stage(nn.Linear(WIDTH, WIDTH)), "weight_grad_store", eager)
