"""Solving: what a worker process does with a queued problem, and how its news reach the store."""

from __future__ import annotations

from pkgutil import resolve_name

from api.database import database_at
from api.refusal import document_of
from api.settings import Settings
from api.store import Store
from zbplan.errors import ZbplanError
from zbplan.plan import Plan
from zbplan.validate import check


def solve_queued(settings: Settings, key: str) -> None:
    """Solve a queued problem unless another process has it; every better plan goes to the store at once."""
    store = Store(database_at(settings.database_url))
    problem = store.start(key)
    if problem is None:
        return

    def keep(plan: Plan, _bound_ms: float) -> None:
        store.improve(key, check(plan))

    try:
        plan = resolve_name(settings.solve)(problem, on_incumbent=keep)
        store.finish(key, check(plan))
    except ZbplanError as error:
        store.fail(key, document_of(error))
