"""StepGuard: what may run an iteration of a PlanSchedule more than once, and look in before each op."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any, TypeVar

from runtime_client.lowering import Action

Result = TypeVar("Result")


class StepGuard:
    """Runs an iteration once; a subclass may run it again if what it started from turned out to be wrong.

    Attributes
    ----------
    void
        True while an attempt only runs to its end so that every rank gets its messages: nothing that it computes
        counts, the caller's loss is not asked, and nothing should be recorded.
    """

    void: bool = False

    def run(self, attempt: Callable[[], Result], batch: Mapping[str, Any]) -> Result:
        """Run all actions of an iteration on a batch, at least once, and return what the last attempt returns."""
        return attempt()

    def before(self, action: Action) -> None:
        """Look in before an op, a loss, a send, or the wait for what a receive brings."""
