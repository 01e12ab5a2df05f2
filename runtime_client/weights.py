"""The weights that an optimizer steps, and those that the stages compute with: the same, or low-precision copies."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence
from contextlib import AbstractContextManager
from typing import NamedTuple

import torch
from torch import Tensor, nn, optim

from runtime_client.validation_errors import OptimizerUseError


class Weight(NamedTuple):
    """A parameter of a stage, and the tensor that the optimizer steps; most often one and the same."""

    used: nn.Parameter
    stepped: Tensor

    @property
    def is_copy(self) -> bool:
        """Whether the stage computes with a rounded copy of the optimizer's master."""
        return self.used is not self.stepped


def master_weights(parameters: Iterable[nn.Parameter]) -> dict[nn.Parameter, nn.Parameter]:
    """Return a float32 master for each low-precision parameter, and every other one that can be trained as it is.

    The values go to the optimizer, the whole goes to ``PostValidatedOptimizer(masters=…)``.
    """
    return {
        parameter: nn.Parameter(parameter.detach().float())
        if parameter.dtype in (torch.float16, torch.bfloat16)
        else parameter
        for parameter in parameters
        if parameter.requires_grad
    }


class Weights:
    """All weights of one optimizer on this rank.

    Raises
    ------
    OptimizerUseError
        If no stage uses a tensor that the optimizer steps.
    """

    def __init__(
        self,
        optimizer: optim.Optimizer,
        modules: Sequence[nn.Module],
        masters: Mapping[nn.Parameter, nn.Parameter] | None = None,
    ) -> None:
        self.optimizer = optimizer
        self._used_of = {id(master): used for used, master in (masters or {}).items()}
        known = {id(parameter) for module in modules for parameter in module.parameters()}
        for weight in self:
            if weight.stepped.requires_grad and id(weight.used) not in known:
                raise OptimizerUseError(
                    f"found a weight of shape {tuple(weight.stepped.shape)} in the optimizer that no stage of this "
                    "rank has; needed the stages' own parameters, or masters= from master_weights()"
                )

    def __iter__(self) -> Iterator[Weight]:
        for group in self.optimizer.param_groups:
            yield from self.of_group(group)

    def of_group(self, group: Mapping[str, Sequence[Tensor]]) -> list[Weight]:
        """Return the weights of one of the optimizer's groups."""
        return [Weight(self._used_of.get(id(stepped), stepped), stepped) for stepped in group["params"]]

    def gradients(self, modules: Mapping[int, nn.Module], skip: Iterable[Tensor] = ()) -> dict[int, list[Tensor]]:
        """Return by stage, in the order of its parameters, the gradients of what is stepped; shared ones once."""
        wanted = {id(weight.used) for weight in self}.difference(map(id, skip))
        found: dict[int, list[Tensor]] = {}
        for stage in sorted(modules):
            parameters = [parameter for parameter in modules[stage].parameters() if id(parameter) in wanted]
            wanted.difference_update(map(id, parameters))
            found[stage] = [parameter.grad for parameter in parameters if parameter.grad is not None]
        return found

    def step(self, scale: float = 1.0) -> None:
        """Multiply the gradients, step, and round the masters to what the stages compute with."""
        copies = [weight for weight in self if weight.is_copy]
        for used, stepped in copies:
            stepped.grad = None if used.grad is None else used.grad.to(stepped.dtype)
        gradients = [weight.stepped.grad for weight in self if weight.stepped.grad is not None]
        if scale != 1.0 and gradients:
            torch._foreach_mul_(gradients, scale)
        self.optimizer.step()
        for _, stepped in copies:
            stepped.grad = None
        self.round_masters()

    @torch.no_grad()
    def round_masters(self) -> None:
        """Make every low-precision copy what its master rounds to."""
        for weight in self:
            if weight.is_copy:
                weight.used.copy_(weight.stepped)

    def zero_grad(self, set_to_none: bool) -> None:
        """Clear the gradients that the stages add to."""
        self.optimizer.zero_grad(set_to_none)
        for used in (weight.used for weight in self if weight.is_copy and weight.used.grad is not None):
            used.grad = None if set_to_none else torch.zeros_like(used.grad)

    def unseen_by_autograd(self) -> AbstractContextManager[None]:
        """Change weights between the forward and the backward of an iteration.

        That is sound in two cases only: they end up with the bits that they had, or nobody uses what the backward
        computes.
        """
        return torch.autograd._unsafe_preserve_version_counter(tuple(weight.used for weight in self))
