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

_KEY = re.compile(r"[0-9a-f]{64}")
_UNDER_WAY = ("queued", "solving")


class PlanSoFarWarning(UserWarning):
    """The solve goes on; the plan is the best so far."""


def download(url: str, problem_or_key: Problem | Mapping[str, Any] | str, *, timeout_s: float) -> Plan:
    """Return the plan of a problem or key, waiting until the service has solved it.

    When time is up before that, the best plan so far is returned with a ``PlanSoFarWarning``.

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
    headers = {"content-type": "application/json"} if body is not None else {}
    left_s = max(deadline - time.monotonic(), FIRST_PAUSE_S)
    try:
        response = client.request(method, path, content=body, headers=headers, timeout=left_s)
    except (httpx.HTTPError, httpx.InvalidURL) as error:
        raise FetchError(f"{where}: found {type(error).__name__} ({error}); needed a service that answers") from error
    try:
        answer = response.json()
    except ValueError:
        answer = None
    if response.status_code not in (200, 202) or not isinstance(answer, dict):
        raise FetchError(f"{where}: found status {response.status_code}, {_problem(answer, response)}; needed a plan")
    return answer


def _problem(answer: object, response: httpx.Response) -> str:
    """Return what an RFC 9457 body says, or the start of any other."""
    if isinstance(answer, dict) and "title" in answer:
        return ": ".join(str(answer[name]) for name in ("title", "detail") if answer.get(name))
    return repr(response.text[:200])


def _plan(answer: dict[str, Any], key: str, url: str, timeout_s: float) -> Plan:
    status, text = answer.get("status"), answer.get("plan")
    if text is None or (status != "done" and status not in _UNDER_WAY):
        reason = f" ({answer['error']})" if answer.get("error") else ""
        raise FetchError(f"{url}, key {key}: found status {status!r}{reason} within {timeout_s:g} s; needed a plan")
    try:
        plan = Plan.parse(text)
    except InvalidInputError as error:
        raise FetchError(f"{url}, key {key}: found a plan that cannot be read: {error}") from error
    if plan.key != key:
        raise FetchError(f"{url}: found the plan of key {plan.key}; needed that of {key}")
    if status != "done":
        warnings.warn(
            f"the service was still {status} after {timeout_s:g} s: using its plan so far, gap {plan.bound.gap:.1%}",
            PlanSoFarWarning,
            stacklevel=2,
        )
    return plan
