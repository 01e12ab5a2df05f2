"""Stop: how work that takes long learns that nobody waits for it any more."""

from __future__ import annotations

from collections.abc import Callable

Stop = Callable[[], bool]
"""Asked between steps whether to end with what is there."""


def never() -> bool:
    """Return that there is no need to stop."""
    return False
