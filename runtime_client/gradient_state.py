"""The state of a rank's gradients: its part of the global norm, and whether all of them are finite.

There is one definition of the norm, for every mode and for a single process. A stage's part is the float64 sum over its
parameters, in their order, of the sum of |g|^p (or the largest |g|); parts add up in the order of stages, and of ranks
where several ranks hold parts of one stage.
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass

import torch
from torch import Tensor
from torch.distributed.tensor import DTensor

from runtime_client.validation_errors import OptimizerUseError

NO_STAGE = -1
PIECE = 1 << 18
"""How many elements are made float64 at once: few, so that they stay in a cache."""


@dataclass(frozen=True)
class GradientState:
    """What one rank says about the gradients of one iteration.

    Attributes
    ----------
    parts
        By stage, the sum of |g|^p or the largest |g|.
    finite
        Whether every gradient of the rank is.
    """

    parts: Mapping[int, float]
    finite: bool

    def encode(self, stages: int) -> Tensor:
        """Return the state as float64 numbers, with room for a number of stages, so that all ranks send as many."""
        rows = [*self.parts.items(), *[(NO_STAGE, 0.0)] * (stages - len(self.parts))]
        return torch.tensor([float(self.finite), *(number for row in rows for number in row)], dtype=torch.float64)

    @classmethod
    def decode(cls, message: Tensor) -> GradientState:
        """Return the state that ``encode`` made a message of."""
        finite, *numbers = message.tolist()
        rows = zip(numbers[::2], numbers[1::2], strict=True)
        return cls({int(stage): part for stage, part in rows if stage != NO_STAGE}, bool(finite))


def state_of(gradients: Mapping[int, Sequence[Tensor]], norm_type: float) -> GradientState:
    """Return the state of gradients by stage; a rank that holds no part of a tensor leaves it out (``own_part``)."""
    sums = {stage: [_sum(gradient, norm_type) for gradient in own] for stage, own in gradients.items()}
    numbers = iter(_numbers([value for own in sums.values() for value in own]))
    parts = {stage: _fold((next(numbers) for _ in own), norm_type) for stage, own in sums.items()}
    finite = all(map(math.isfinite, parts.values())) or all(
        bool(gradient.isfinite().all()) for own in gradients.values() for gradient in own
    )
    return GradientState(parts, finite)


def own_part(gradient: Tensor, *, counts_replicas: bool) -> Tensor | None:
    """Return what this rank counts of a gradient: None if another rank counts the same numbers.

    Raises
    ------
    OptimizerUseError
        If the gradient still is to be summed over ranks.
    """
    if not isinstance(gradient, DTensor):
        return gradient if counts_replicas else None
    coordinates = gradient.device_mesh.get_coordinate() or []
    for placement, coordinate in zip(gradient.placements, coordinates, strict=True):
        if placement.is_partial():
            raise OptimizerUseError(
                f"found a gradient of shape {tuple(gradient.shape)} with placement {placement}; needed one that is "
                "summed over its ranks before the optimizer step"
            )
        if placement.is_replicate() and coordinate > 0:
            return None
    return gradient.to_local()


def global_norm(states: Sequence[GradientState], norm_type: float) -> float:
    """Return the norm over all ranks' gradients."""
    rows = sorted((stage, rank, part) for rank, state in enumerate(states) for stage, part in state.parts.items())
    total = _fold((part for _, _, part in rows), norm_type)
    if math.isinf(norm_type):
        return total
    return math.sqrt(total) if norm_type == 2 else total ** (1 / norm_type)


def _sum(gradient: Tensor, norm_type: float) -> Tensor:
    """Return the sum of |g|^p, or the largest |g|, as one float64 number on the gradient's device."""
    total = torch.zeros((), dtype=torch.float64, device=gradient.device)
    for piece in gradient.detach().flatten().split(PIECE) if gradient.numel() else ():
        exact = piece.double()
        if math.isinf(norm_type):
            total = torch.maximum(total, exact.abs().max())
        else:
            total = total + (exact.square() if norm_type == 2 else exact.abs().pow(norm_type)).sum()
    return total


def _numbers(values: list[Tensor]) -> list[float]:
    """Bring numbers from a device to the host at once."""
    return torch.stack(values).tolist() if values else []


def _fold(parts: Iterable[float], norm_type: float) -> float:
    total = 0.0
    for part in parts:
        if math.isinf(norm_type):
            total = part if part > total or math.isnan(part) else total
        else:
            total += part
    return total
