"""Solving: what a worker process does with a claimed problem, and how its news reach the store."""

from __future__ import annotations

import logging
import time
from collections.abc import Callable
from pkgutil import resolve_name
from typing import ParamSpec

from api.database import OUT_OF_ORDER, database_at
from api.queue import queue_of
from api.refusal import document_of
from api.settings import Settings
from api.store import Claim, Store
from zbplan.errors import ZbplanError
from zbplan.plan import Plan
from zbplan.validate import check

logger = logging.getLogger(__name__)

P = ParamSpec("P")

PATIENCE_S = 1.0
"""How long to wait before the store is told again what it could not be told."""


def solve_claimed(settings: Settings, claim: Claim) -> None:
    """Solve a problem that this service has claimed; every better plan goes to the store at once."""
    store = Store(database_at(settings.database_url), queue_of(settings))
    problem = store.problem(claim)
    if problem is None:
        return

    def keep(plan: Plan, _bound_ms: float) -> None:
        try:
            store.improve(claim, check(plan))
        except OUT_OF_ORDER as error:
            logger.warning("the store cannot be used, and may get the next better plan: %s", error)

    try:
        plan = resolve_name(settings.solve)(problem, on_incumbent=keep)
        _patiently(store.finish, claim, check(plan))
    except ZbplanError as error:
        _patiently(store.fail, claim, document_of(error))


def _patiently(tell: Callable[P, None], *args: P.args, **kwargs: P.kwargs) -> None:
    """Tell the store something, again and again while it is out of order; whoever runs this ends it in time."""
    while True:
        try:
            return tell(*args, **kwargs)
        except OUT_OF_ORDER as error:
            logger.warning("the store cannot be used: %s", error)
            time.sleep(PATIENCE_S)
