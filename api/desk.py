"""Desk: what a worker process does in milliseconds to seconds, while the event loop stays free."""

from __future__ import annotations

import time

from api.refusal import Refusal, document_of
from api.settings import Settings
from api.store import store_at
from heuristic import construct
from zbplan.errors import Finding, InvalidInputError, ZbplanError
from zbplan.plan import Plan
from zbplan.problem import Problem
from zbplan.validate import check


def submit(settings: Settings, body: bytes) -> str:
    """Store the problem that a body holds, with a constructive plan, ready to be solved; return its key.

    Raises
    ------
    Refusal
        If the body is no problem, or one without a plan; then nothing is stored.
    """
    store = store_at(settings.database_url)
    try:
        problem = read_problem(settings, body)
        if not store.reopen(problem, settings.retry_after_s):
            store.add(problem, first_plan(problem))
    except ZbplanError as error:
        raise Refusal(document_of(error)) from None
    return problem.key


def read_problem(settings: Settings, body: bytes) -> Problem:
    """Parse a problem and hold it against the limits of the service; raises ``InvalidInputError``."""
    try:
        problem = Problem.parse_json(body)
    except RecursionError:
        raise InvalidInputError([Finding("$", "brackets nested too deep", "a flat JSON document")]) from None
    findings = [
        Finding(path, found, f"at most {most} on this service")
        for path, found, value, most in _asked(settings, problem)
        if value > most
    ]
    if findings:
        raise InvalidInputError(findings)
    return problem


def _asked(settings: Settings, problem: Problem) -> list[tuple[str, str, float, float]]:
    stages, microbatches = problem.profile.stages, problem.microbatches
    ops = 3 * stages * microbatches
    shown = f"{stages} stages × {microbatches} microbatches = {ops} ops"
    return [
        ("$.devices", str(problem.devices), problem.devices, settings.max_devices),
        ("$.microbatches", shown, ops, settings.max_ops),
        ("$.time_limit_s", f"{problem.time_limit_s:g}", problem.time_limit_s, settings.max_time_limit_s),
    ]


def first_plan(problem: Problem) -> Plan:
    """Return the best constructive plan, judged."""
    began = time.monotonic()
    plan = construct(problem)
    took = plan.provenance.model_copy(update={"solve_s": time.monotonic() - began})
    return check(plan.model_copy(update={"provenance": took}))


def is_sound(settings: Settings, plan: int) -> bool:
    """Return whether a stored plan is what was stored, and legal."""
    text = store_at(settings.database_url).document(plan)
    if text is None:
        return False
    try:
        check(Plan.parse_json(text))
    except ZbplanError:
        return False
    return True
