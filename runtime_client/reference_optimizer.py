"""Reference: the synchronous optimizer step of all stages in one process, to the last bit what the ranks must make."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from torch import nn, optim

from runtime_client.decision import Rules, judge
from runtime_client.gradient_state import global_norm, state_of
from runtime_client.weights import Weights


def reference_optimizer_step(
    optimizer: optim.Optimizer,
    stages: Sequence[nn.Module],
    *,
    max_norm: float | None = None,
    norm_type: float = 2.0,
    check_finite: bool = True,
    masters: Mapping[nn.Parameter, nn.Parameter] | None = None,
) -> float:
    """Clip, step or skip by the gradients of all stages, and return their norm before clipping.

    Parameters are those of ``PostValidatedOptimizer``; the optimizer steps the parameters of all stages, 0 … S−1.
    """
    weights = Weights(optimizer, stages, masters)
    state = state_of(weights.gradients(dict(enumerate(stages))), norm_type)
    decision = judge([state], Rules(max_norm, norm_type, check_finite)).decision
    norm = global_norm([state], norm_type)
    if decision.step:
        weights.step(decision.scale)
    return norm
