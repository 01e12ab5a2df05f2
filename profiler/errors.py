"""What can go wrong while measuring."""

from __future__ import annotations

from zbplan.errors import ZbplanError


class MeasurementError(ZbplanError):
    """A model that cannot be measured: says which stage and op, what was found, what was needed.

    Attributes
    ----------
    on_every_rank
        Whether all ranks raise it, so that one may speak for all.
    """

    def __init__(self, message: str, *, on_every_rank: bool = False) -> None:
        super().__init__(message)
        self.on_every_rank = on_every_rank


class PostError(ZbplanError):
    """A service that did not take the profile."""
