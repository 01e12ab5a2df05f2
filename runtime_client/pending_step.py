"""An optimizer step between the moment it is asked for and the moment it is known to be right."""

from __future__ import annotations

from torch import Tensor, nn

from runtime_client.gradient_state import global_norm
from runtime_client.speculation import hyperparameters
from runtime_client.validation import Exchange
from runtime_client.validation_errors import OptimizerUseError
from runtime_client.weights import Weights


class GradientNorm:
    """A step's global gradient norm, before clipping. Asking for the number waits for the slowest rank's last W."""

    def __init__(self, exchange: Exchange, norm_type: float) -> None:
        self._exchange = exchange
        self._norm_type = norm_type

    def result(self) -> float:
        """Return the norm, once every rank's part has arrived; raises ``ValidationError`` if one never will."""
        return global_norm(self._exchange.states(), self._norm_type)

    __float__ = result


class PendingStep:
    """What the step was asked for with, so that it can be made later as if it were then.

    Attributes
    ----------
    moved
        Whether the stages' weights have been moved ahead of the step.
    zero_grad
        ``set_to_none`` of a ``zero_grad`` that waits; None if none does.
    """

    def __init__(self, exchange: Exchange, weights: Weights) -> None:
        self.exchange = exchange
        self.hyperparameters = hyperparameters(weights.optimizer)
        self.moved = False
        self.zero_grad: bool | None = None
        used = [weight.used for weight in weights if weight.used.grad is not None]
        self._gradients: list[tuple[nn.Parameter, Tensor, int]] = [
            (parameter, parameter.grad, parameter.grad._version) for parameter in used
        ]

    def check_gradients(self) -> None:
        """Raise ``OptimizerUseError`` unless gradients are those that the step was asked for with."""
        changed = sum(
            parameter.grad is not gradient or gradient._version != version
            for parameter, gradient, version in self._gradients
        )
        if changed:
            raise OptimizerUseError(
                f"found {changed} of {len(self._gradients)} gradients changed between an optimizer step and its "
                "validation; needed them as they were: clear them with zero_grad() of the PostValidatedOptimizer"
            )
