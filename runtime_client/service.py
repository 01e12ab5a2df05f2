"""The service as a client sees it: ask for a plan, wait until it is done."""

from __future__ import annotations

import re
import time
import warnings
from collections.abc import Mapping
from typing import Any

import httpx

from runtime_client.errors import FetchError
from zbplan.errors import InvalidInputError
from zbplan.plan import Plan
from zbplan.problem import Problem

FIRST_PAUSE_S = 0.1
LONGEST_PAUSE_S = 2.0
LONGEST_HOLD_S = 30
"""How long the service is asked to hold an answer until the plan is final (RFC 7240), to spare it polls."""
GRACE_S = 10.0
"""How much longer than a held answer a request may take."""

_KEY = re.compile(r"[0-9a-f]{64}")
_UNDER_WAY = ("queued", "solving")


class PlanSoFarWarning(UserWarning):
    """The solve is not done; the plan is its best so far."""


def download(url: str, problem_or_key: Problem | Mapping[str, Any] | str, *, timeout_s: float) -> Plan:
    """Return the plan of a problem or key, waiting until the service has solved it.

    When the solve was stopped, or time is up, its best plan so far is returned with a ``PlanSoFarWarning``.

    Raises
    ------
    FetchError
        Naming the URL and what it answered.
    InvalidInputError
        When the problem is none, before anything is sent, or when the answer holds no plan.
    """
    deadline = time.monotonic() + timeout_s
    with httpx.Client(base_url=url) as client:
        if isinstance(problem_or_key, str):
            key = _checked_key(problem_or_key)
            answer = _ask(client, "GET", f"/v1/plans/{key}", deadline)
        else:
            problem = problem_or_key if isinstance(problem_or_key, Problem) else Problem.parse(problem_or_key)
            key = problem.key
            answer = _ask(client, "POST", "/v1/plans", deadline, problem.to_json())
        pause_s = FIRST_PAUSE_S
        while answer.get("status") in _UNDER_WAY and time.monotonic() + pause_s < deadline:
            time.sleep(pause_s)
            pause_s = min(2 * pause_s, LONGEST_PAUSE_S)
            answer = _ask(client, "GET", f"/v1/plans/{key}", deadline)
    return _plan(answer, key, url, timeout_s)


def _checked_key(key: str) -> str:
    if not _KEY.fullmatch(key):
        raise FetchError(f"found the key {key!r}; needed 64 hexadecimal digits, as the service and every plan give it")
    return key


def _ask(client: httpx.Client, method: str, path: str, deadline: float, body: str | None = None) -> dict[str, Any]:
    where = f"{method} {str(client.base_url).rstrip('/')}{path}"
    hold_s = min(LONGEST_HOLD_S, max(0.0, deadline - time.monotonic()))
    headers = {"prefer": f"wait={int(hold_s)}"} | ({"content-type": "application/json"} if body is not None else {})
    try:
        response = client.request(method, path, content=body, headers=headers, timeout=hold_s + GRACE_S)
    except (httpx.HTTPError, httpx.InvalidURL) as error:
        raise FetchError(f"{where}: found {type(error).__name__} ({error}); needed a service that answers") from error
    try:
        answer = response.json()
    except ValueError:
        answer = None
    if response.status_code not in (200, 202) or not isinstance(answer, dict):
        raise FetchError(f"{where}: found status {response.status_code}, {_said(answer, response.text)}; needed a plan")
    return answer


def _said(problem: object, otherwise: str) -> str:
    """Return what an RFC 9457 document says, or the start of what came instead."""
    if isinstance(problem, dict) and "title" in problem:
        return ": ".join(str(problem[name]) for name in ("title", "detail") if problem.get(name))
    return repr(otherwise[:200])


def _plan(answer: dict[str, Any], key: str, url: str, timeout_s: float) -> Plan:
    error = answer.get("error")
    status = f"{answer.get('status')!r}" + (f" ({_said(error, str(error))})" if error else "")
    if answer.get("plan") is None:
        raise FetchError(f"{url}, key {key}: found no plan but status {status} within {timeout_s:g} s; needed a plan")
    try:
        plan = Plan.parse(answer["plan"])
    except InvalidInputError as invalid:
        raise FetchError(f"{url}, key {key}: found a plan that cannot be read: {invalid}") from invalid
    if plan.key != key:
        raise FetchError(f"{url}: found the plan of key {plan.key}; needed that of {key}")
    if answer.get("status") != "done":
        warnings.warn(
            f"the solve has status {status}: using its best plan so far, {plan.provenance.method} "
            f"with a gap of {plan.bound.gap:.1%}",
            PlanSoFarWarning,
            stacklevel=2,
        )
    return plan
