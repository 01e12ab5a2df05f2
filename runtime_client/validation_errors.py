"""The named errors of an optimizer step that all ranks must agree on."""

from __future__ import annotations

from zbplan.errors import ZbplanError, root


class ValidationError(ZbplanError):
    """The states of all ranks could not be had, most often because another rank is gone."""

    def __init__(self, rank: int, ranks: int, error: BaseException) -> None:
        self.rank = rank
        super().__init__(
            f"rank {rank}, while an optimizer step was validated: found {root(error)}; needed the state of all {ranks} "
            "ranks: look for the one that failed first"
        )


class OptimizerUseError(ZbplanError):
    """The optimizer, its gradients or its options were used in a way that cannot be made exact."""
