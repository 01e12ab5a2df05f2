"""Sweep desk: what a worker process does for sweeps, in milliseconds to seconds."""

from __future__ import annotations

from functools import lru_cache

from api.database import database_at
from api.desk import keep, refusing, resolved
from api.documents import load, parse_value, text_of
from api.profiles import Profiles
from api.queue import queue_of
from api.refusal import Refusal, document
from api.resource import UNDER_WAY
from api.settings import Settings
from api.store import Store
from api.sweeps import Costs, SweepRequest, Sweeps, cell_of, table
from zbplan.errors import InvalidInputError
from zbplan.plan import Plan
from zbplan.problem import Problem

KNOWN_PLANS = 4096

CANCELLED = document(
    "cancelled", 409, "The sweep was stopped", "found a cell not asked for yet; needed another POST of the sweep"
)

PASSING = (CANCELLED.type, *(f"urn:zbplan:error:{name}" for name in ("memory", "overrun", "crashed")))
"""Why a cell may be refused today and not tomorrow: the state or the means of the service, not what was asked."""


def add(settings: Settings, body: bytes, caller: str | None) -> str:
    """Keep the sweep that a body holds, taken up again where it was stopped; return its key.

    Raises
    ------
    Refusal
        If the body is none, or has too many cells.
    """
    database = database_at(settings.database_url)
    with refusing():
        value = load(body)
        if isinstance(value, dict) and "problem" in value:
            problem, _ = resolved(value["problem"], Profiles(database), "$.problem")
            value = {**value, "problem": problem}
        request = parse_value(SweepRequest, value)
        request.require_at_most(settings.max_cells)
        key = Sweeps(database).add(request, caller)
    Sweeps(database).take_up(key, PASSING)
    return key


def waiting(settings: Settings, key: str) -> list[int]:
    """Return the cells of a sweep that are not posted."""
    sweeps = Sweeps(database_at(settings.database_url))
    request, _, _ = _found(sweeps, key)
    return sorted(set(range(len(request.cells()))) - sweeps.noted(key))


def submit(settings: Settings, key: str, cell: int) -> str:
    """Post the problem of a cell; return its key, or nothing where it is refused, which is noted, or was noted before.

    Raises
    ------
    Refusal
        While there is no room for another problem.
    """
    database = database_at(settings.database_url)
    sweeps, store = Sweeps(database), Store(database, queue_of(settings))
    request, _, caller = _found(sweeps, key)
    if cell in sweeps.noted(key):  # posted, or stopped, at another replica
        return ""
    try:
        with refusing():
            problem = Problem.parse({**request.problem.model_dump(), **request.cells()[cell]})
            keep(settings, store, problem, caller)
    except Refusal as refusal:
        if refusal.document.status in (429, 503):
            raise
        sweeps.note(key, cell, "", refusal.document)
        return ""
    noted = sweeps.note(key, cell, problem.key)
    if not noted:  # stopped while it was posted, by someone who could not see it yet
        store.cancel(problem.key)
    return noted


def cancel(settings: Settings, key: str) -> list[str]:
    """Note that the cells that are not posted never will be; return the problems whose solves are to be stopped."""
    sweeps = Sweeps(database_at(settings.database_url))
    for cell in waiting(settings, key):
        sweeps.note(key, cell, "", CANCELLED)
    return [row.key for row in sweeps.outcomes(key).values() if row.status in UNDER_WAY]


def table_of(settings: Settings, key: str) -> tuple[bytes, bool]:
    """Return what came of each cell, and whether better may come. Raises ``Refusal`` if there is no such sweep."""
    sweeps = Sweeps(database_at(settings.database_url))
    request, submitted_at, _ = _found(sweeps, key)
    outcomes = sweeps.outcomes(key)
    rows = [outcomes.get(at) for at in range(len(request.cells()))]
    costs = [None if row is None or row.plan is None else _costs(settings.database_url, row.plan) for row in rows]
    found = table(key, submitted_at, list(map(cell_of, request.cells(), rows, costs)))
    return text_of(found), found.status == "solving"


@lru_cache(KNOWN_PLANS)
def _costs(database_url: str, plan: int) -> Costs | None:
    """Return what a stored plan costs; a row is never changed, so that it is read once."""
    text = Store(database_at(database_url)).document(plan)
    try:
        metrics = None if text is None else Plan.parse_json(text).metrics
    except InvalidInputError:  # it is in the words of an older service
        metrics = None
    if metrics is None:
        return None
    return Costs(metrics.bubble_rate, max(metrics.peak_bytes))


def _found(sweeps: Sweeps, key: str) -> tuple[SweepRequest, str, str | None]:
    found = sweeps.request(key)
    if found is None:
        detail = f"found no sweep with key {key[:80]!r}; needed one that this service has"
        raise Refusal(document("not_found", 404, "There is no such sweep", detail))
    return found
