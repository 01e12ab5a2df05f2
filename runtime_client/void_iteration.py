"""The iteration that started from weights which turned out to be wrong: it runs to its end, and then once more."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import Any

import torch
from torch import Tensor, nn

from runtime_client.errors import OpError, StepError
from runtime_client.lowering import Action
from runtime_client.step_guard import Result, StepGuard
from runtime_client.surroundings import Surroundings
from runtime_client.validation_errors import OptimizerUseError, ValidationError

VALIDATE_BEFORE = ("RECV_B", "LOSS", "B", "BW")
"""The first of these that a device comes to ends the time in which its last step may still be taken back.

Everything before is F. The wait for the first gradient is time to validate in; a loss may be scaled by what a
validation decides.
"""


class VoidIteration(StepGuard):
    """Settles the last step in time, and runs the iteration again if that step was wrong.

    Parameters
    ----------
    settle
        Waits until the last step is right, if it is not known to be.
    pending
        Tells whether it still is not known.

    Attributes
    ----------
    due
        Set when the last step of some rank was wrong: the iteration that starts from it, here or on another rank, must
        be run by all ranks once for its messages and once for its results.
    running
        Whether an iteration is under way.
    """

    def __init__(
        self,
        modules: Sequence[nn.Module],
        device: torch.device,
        settle: Callable[[], None],
        pending: Callable[[], bool],
    ) -> None:
        self._modules = modules
        self._device = device
        self._settle = settle
        self._pending = pending
        self._parameters: dict[int, nn.Parameter] = {}
        self._gradients: list[tuple[nn.Parameter, Tensor | None]] = []
        self._anomaly_mode = (False, True)
        self.void = False
        self.due = False
        self.running = False

    def run(self, attempt: Callable[[], Result], batch: Mapping[str, Any]) -> Result:
        """Run an iteration, twice if its first attempt is void."""
        if not self.due and not self._pending():
            return self._run_once(attempt, batch)
        start = Surroundings(self._modules, self._device)
        # Asked now: FSDP shows other parameters while an iteration is under way.
        self._parameters = {id(parameter): parameter for module in self._modules for parameter in module.parameters()}
        try:
            self._begin_void_if_due()
            result = self._run_once(attempt, batch)
        finally:
            was_void = self._end_void()
        if not was_void:
            return result
        start.restore()
        return self._run_once(attempt, batch)

    def before(self, action: Action) -> None:
        """Settle the last step before the first backward."""
        if action.kind in VALIDATE_BEFORE and self._pending():
            self._settle()
            self._begin_void_if_due()

    def _run_once(self, attempt: Callable[[], Result], batch: Mapping[str, Any]) -> Result:
        versions = {name: value._version for name, value in batch.items() if _has_version(value)}
        self.running = True
        try:
            result = attempt()
        except (OpError, StepError) as error:
            if isinstance(error.__cause__, ValidationError | OptimizerUseError):
                raise error.__cause__ from None
            raise
        finally:
            self.running = False
        changed = [name for name, version in versions.items() if batch[name]._version != version]
        if changed:
            raise OptimizerUseError(
                f"found {', '.join(changed)} changed in place by a stage; needed a batch that stays as it is, since an "
                "iteration may have to be run again: clone it in the stage"
            )
        return result

    def _begin_void_if_due(self) -> None:
        """Put the gradients aside that are not this attempt's, and look away from what it computes."""
        if not self.due:
            return
        self.due, self.void = False, True
        self._gradients = [(parameter, parameter.grad) for parameter in self._parameters.values()]
        for parameter in self._parameters.values():
            parameter.grad = None
        self._anomaly_mode = torch.is_anomaly_enabled(), torch.is_anomaly_check_nan_enabled()
        torch.autograd.set_detect_anomaly(False)

    def _end_void(self) -> bool:
        """Bring back what was put aside; tell whether there was anything to end."""
        was_void, self.void = self.void, False
        if was_void:
            torch.autograd.set_detect_anomaly(*self._anomaly_mode)
            for parameter, gradient in self._gradients:
                parameter.grad = gradient
            # The step was made again unseen by autograd; whoever keeps something by a weight's version must see it now.
            torch.autograd.graph.increment_version(list(self._parameters.values()))
            torch.clear_autocast_cache()
        self._parameters, self._gradients = {}, []
        return was_void


def _has_version(value: Any) -> bool:
    return isinstance(value, Tensor) and not value.is_inference()
