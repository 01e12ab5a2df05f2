"""Desk: what a worker process does in milliseconds to seconds, while the event loop stays free."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from contextlib import contextmanager, suppress
from dataclasses import asdict, dataclass
from typing import Any, Literal

from api.database import database_at
from api.documents import load, parse, parse_value, text_of
from api.near import METHOD, reused
from api.profiles import Profiles
from api.queue import queue_of
from api.refusal import Refusal, document, document_of
from api.resource import UNDER_WAY
from api.settings import Settings
from api.store import Store
from solver import Options, comparison, solve
from zbplan.errors import Finding, InvalidInputError, ZbplanError
from zbplan.formats import chrome, pytorch_csv
from zbplan.plan import Plan
from zbplan.problem import Problem
from zbplan.profile import Profile
from zbplan.record import Record
from zbplan.validate import check, validate

Form = Literal["csv", "trace"]
"""PyTorch's CSV; Chrome's trace events."""

Known = Literal["exact", "near", "none"]
"""What the store knew of a problem: its plan, that of a problem like it, or nothing."""


@dataclass(frozen=True)
class Submitted:
    """The key of a stored problem, whether the same body will always mean it, and what was known of it before."""

    key: str
    for_ever: bool
    known: Known


class ViolationItem(Record):
    """One way in which a plan is wrong: its name, where, what stands there and what would be right."""

    code: str
    path: str
    found: str
    needed: str


class Judgement(Record):
    """Whether a plan is legal, and every way in which it is not."""

    legal: bool
    violations: list[ViolationItem]


def submit(settings: Settings, body: bytes, caller: str | None) -> Submitted:
    """Store the problem that a body holds, with a first plan, ready to be solved.

    Raises
    ------
    Refusal
        If the body is no problem, or one without a plan, or there is no room for another; then nothing is stored.
    """
    database = database_at(settings.database_url)
    store = Store(database, queue_of(settings))
    with refusing():
        problem, for_ever = read_problem(body, Profiles(database))
        return Submitted(problem.key, for_ever, keep(settings, store, problem, caller))


def keep(settings: Settings, store: Store, problem: Problem, caller: str | None) -> Known:
    """Store a problem with a first plan, ready to be solved, and return what was known of it.

    One that is known is taken up again where that may help.

    Raises
    ------
    ZbplanError, Refusal
        If it passes the limits, has no plan, or there is no room for another solve; what is known of it stays.
    """
    require_limits(settings, problem)
    job = store.job(problem.key)
    if job is None:
        require_room(settings, store, caller)
        plan = first_plan(problem, store.near(problem, settings.near_plans, revisions="this"))
        store.add(problem, plan, caller)
        return "near" if plan.provenance.method == METHOD else "none"
    if store.is_worth_another_solve(job, problem.time_limit_s, settings.retry_after_s):
        if job.status not in UNDER_WAY:
            require_room(settings, store, caller)
        store.reopen(job, problem, caller)
    return "exact"


def nothing() -> None:
    """Show that a worker process works."""


def first_plan(problem: Problem, near: Sequence[bytes]) -> Plan:
    """Return the best constructive plan, or the first with the orders of a near plan that is no slower."""
    constructive = check(solve(problem, options=Options(parts=())))
    most_ms = constructive.metrics.iteration_ms
    return next((plan for plan in reused(problem, near) if plan.metrics.iteration_ms <= most_ms), constructive)


def add_profile(settings: Settings, body: bytes) -> bytes:
    """Store the profile that a body holds; return how to refer to it. Raises ``Refusal`` if it is none."""
    with refusing():
        return text_of(Profiles(database_at(settings.database_url)).add(parse(Profile, body)))


def judge(settings: Settings, body: bytes) -> bytes:
    """Return the judgement of the plan that a body holds. Raises ``Refusal`` if it is none, or passes the limits."""
    with refusing():
        plan = parse(Plan, body)
        if (asked := _asked_by(plan)) is not None:
            require_limits(settings, asked, "$.problem")
        violations = [ViolationItem(**asdict(violation)) for violation in validate(plan)]
        return text_of(Judgement(legal=not violations, violations=violations))


def compare(settings: Settings, body: bytes) -> bytes:
    """Return what every constructive method makes of a problem. Raises ``Refusal`` if the body holds none."""
    with refusing():
        problem, _ = read_problem(body, Profiles(database_at(settings.database_url)))
        require_limits(settings, problem)
        return text_of(comparison.compare(problem, options=Options(parts=())))


def export(settings: Settings, plan: int, form: Form) -> bytes:
    """Return a stored plan in a format of others. Raises ``Refusal`` if it cannot be said in it."""
    text = Store(database_at(settings.database_url)).document(plan)
    if text is None:
        raise Refusal(document("not_found", 404, "There is no such plan", "found a damaged plan; ask again"))
    with refusing():
        found = check(Plan.parse_json(text))
        if form == "trace":
            return chrome.of_plan(found).encode()
        pytorch_csv.check_runs(found)
        return pytorch_csv.write(pytorch_csv.from_plan(found)).encode()


def is_sound(settings: Settings, plan: int) -> bool:
    """Return whether a stored plan is what was stored, and legal."""
    text = Store(database_at(settings.database_url)).document(plan)
    if text is None:
        return False
    try:
        found = Plan.parse_json(text)
        # Whichever planner revision its key is of.
        check(found.model_copy(update={"key": found.asked.key}))
    except ZbplanError:
        return False
    return True


def read_problem(body: bytes, profiles: Profiles) -> tuple[Problem, bool]:
    """Parse a problem; return it, and False if it refers to a profile, whose name may come to mean another one.

    Raises
    ------
    InvalidInputError
        If it is none.
    """
    value, for_ever = resolved(load(body), profiles)
    return parse_value(Problem, value), for_ever


def resolved(value: Any, profiles: Profiles, path: str = "$") -> tuple[Any, bool]:
    """Put the profile that a problem refers to in its place; return the problem, and False if it did refer."""
    profile = value.get("profile") if isinstance(value, dict) else None
    if not isinstance(profile, dict) or set(profile) != {"ref"}:
        return value, True
    reference = profile["ref"]
    text = profiles.find(reference) if isinstance(reference, str) else None
    if text is None:
        needed = "the name or digest of a profile that was posted to /v1/profiles"
        raise InvalidInputError([Finding(f"{path}.profile.ref", f"{reference!r:.100}", needed)])
    return {**value, "profile": load(text)}, False


def require_limits(settings: Settings, problem: Problem, path: str = "$") -> None:
    """Hold a problem, which stands at a path, against the limits of the service; raises ``InvalidInputError``."""
    findings = [
        Finding(f"{path}.{name}", found, f"at most {most} on this service")
        for name, found, value, most in _asked(settings, problem)
        if value > most
    ]
    if findings:
        raise InvalidInputError(findings)


def require_room(settings: Settings, store: Store, caller: str | None) -> None:
    """Turn a solve away while too many wait; raises ``Refusal``."""
    if (found := store.under_way()) >= settings.max_jobs:
        detail = f"found {found} problems that wait or are being solved; needed fewer than {settings.max_jobs}"
        raise Refusal(document("busy", 503, "The queue is full", f"{detail}; try again later"))
    if caller is not None and (found := store.under_way(caller)) >= settings.max_jobs_per_token:
        detail = f"found {found} problems of {caller!r} under way; needed fewer than {settings.max_jobs_per_token}"
        raise Refusal(document("share", 429, "The token's share is used up", f"{detail}; try again later"))


def _asked_by(plan: Plan) -> Problem | None:
    """Return the problem of a plan; None if it is not one, which is all that a judgement then says."""
    with suppress(InvalidInputError):
        return plan.asked
    return None


def _asked(settings: Settings, problem: Problem) -> list[tuple[str, str, float, float]]:
    stages, microbatches = problem.most_stages, problem.microbatches
    ops = 3 * stages * microbatches
    shown = f"{stages} stages × {microbatches} microbatches = {ops} ops"
    return [
        ("devices", str(problem.devices), problem.devices, settings.max_devices),
        ("microbatches", shown, ops, settings.max_ops),
        ("time_limit_s", f"{problem.time_limit_s:g}", problem.time_limit_s, settings.max_time_limit_s),
    ]


@contextmanager
def refusing() -> Iterator[None]:
    """Turn errors of the planner into refusals."""
    try:
        yield
    except ZbplanError as error:
        raise Refusal(document_of(error)) from None
