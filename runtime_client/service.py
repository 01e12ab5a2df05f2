"""The service as a client sees it: ask for a plan, again where that may help, and wait until it is done."""

from __future__ import annotations

import re
import threading
import time
import urllib.request
import warnings
from collections.abc import Callable, Mapping
from concurrent.futures import Future
from typing import Any

import httpx

from runtime_client.errors import FetchError
from zbplan.client import WORTH_A_RETRY, PassingError, bearer, patiently, retry_after_s
from zbplan.errors import InvalidInputError
from zbplan.plan import Plan
from zbplan.problem import Problem

FIRST_PAUSE_S = 0.1
LONGEST_PAUSE_S = 2.0
"""Between two questions whether a solve is over."""
LONGEST_HOLD_S = 30
"""How long the service is asked to hold an answer until the plan is final (RFC 7240), to spare it polls."""
GRACE_S = 10.0
"""How much longer than a held answer a request may take."""

_KEY = re.compile(r"[0-9a-f]{64}")
_UNDER_WAY = ("queued", "solving")


class PlanSoFarWarning(UserWarning):
    """The solve is not done; the plan is its best so far."""


def download(
    url: str,
    problem_or_key: Problem | Mapping[str, Any] | str,
    *,
    timeout_s: float,
    token: str | None = None,
    use_proxy: bool = True,
) -> Plan:
    """Return the plan of a problem or key, waiting until the service has solved it.

    When the solve was stopped, or time is up, its best plan so far is returned with a ``PlanSoFarWarning``.

    Parameters
    ----------
    token
        Sent as a bearer token.
    use_proxy
        False bypasses the proxy that the environment names.

    Raises
    ------
    FetchError
        Naming the URL, what it answered, and the proxy in between; also when the answer holds no plan, or no header
        can carry the token.
    InvalidInputError
        When the problem is none, before anything is sent.
    """
    asked = parse_asked(problem_or_key)
    headers = bearer(token, FetchError)
    deadline_s = time.monotonic() + timeout_s

    def ask() -> dict[str, Any]:
        with httpx.Client(base_url=url, headers=headers, trust_env=use_proxy) as client:
            return _last_answer(_Service(client, deadline_s), asked)

    try:
        answer = _by(deadline_s + GRACE_S, ask)
    except TimeoutError:
        found = f"no whole answer within {timeout_s:g} s and {GRACE_S:g} s of grace"
        raise FetchError(f"{url}: found {found}; needed a service that answers") from None
    return _plan(answer, key_of(asked), url, timeout_s)


def _last_answer(service: _Service, asked: Problem | str) -> dict[str, Any]:
    """Return what the service answers once the solve is over, or time is up."""
    where = f"/v1/plans/{key_of(asked)}"
    answer = service.ask("GET", where) if isinstance(asked, str) else service.ask("POST", "/v1/plans", asked.to_json())
    pause_s = FIRST_PAUSE_S
    while answer.get("status") in _UNDER_WAY and time.monotonic() + pause_s < service.deadline_s:
        time.sleep(pause_s)
        pause_s = min(2 * pause_s, LONGEST_PAUSE_S)
        answer = service.ask("GET", where)
    return answer


def _by(deadline_s: float, ask: Callable[[], dict[str, Any]]) -> dict[str, Any]:
    """Return what a function returns by a deadline, or raise what it raises.

    A time-out of httpx begins anew with each byte, and looking up a name has none. So a server that sends a byte now
    and then would hold a job for ever; here it holds a thread.

    Raises
    ------
    TimeoutError
        When the function has not ended by then.
    """
    answer: Future[dict[str, Any]] = Future()

    def run() -> None:
        try:
            answer.set_result(ask())
        except BaseException as error:  # whatever it is, it is raised where it is waited for
            answer.set_exception(error)

    threading.Thread(target=run, daemon=True).start()
    return answer.result(deadline_s - time.monotonic())


def parse_asked(problem_or_key: Problem | Mapping[str, Any] | str) -> Problem | str:
    """Return a problem or a key, checked; raises ``FetchError`` or ``InvalidInputError``."""
    if isinstance(problem_or_key, str):
        return _checked_key(problem_or_key)
    return problem_or_key if isinstance(problem_or_key, Problem) else Problem.parse(problem_or_key)


def key_of(asked: Problem | str) -> str:
    """Return the key under which a plan is asked for."""
    return asked if isinstance(asked, str) else asked.key


def _checked_key(key: str) -> str:
    if not _KEY.fullmatch(key):
        raise FetchError(f"found the key {key!r}; needed 64 hexadecimal digits, as the service and every plan give it")
    return key


class _Service:
    """A service that is asked until a deadline."""

    def __init__(self, client: httpx.Client, deadline_s: float) -> None:
        self._client = client
        self.deadline_s = deadline_s

    def ask(self, method: str, path: str, body: str | None = None) -> dict[str, Any]:
        """Return the answer to a request, made again where that may help."""
        return patiently(lambda: self._attempt(method, path, body), FetchError, deadline_s=self.deadline_s)

    def _attempt(self, method: str, path: str, body: str | None) -> dict[str, Any]:
        where = f"{method} {str(self._client.base_url).rstrip('/')}{path}"
        hold_s = min(LONGEST_HOLD_S, max(0.0, self.deadline_s - time.monotonic()))
        headers = {"prefer": f"wait={int(hold_s)}"} | ({"content-type": "application/json"} if body is not None else {})
        through = self._proxy()
        try:
            response = self._client.request(method, path, content=body, headers=headers, timeout=hold_s + GRACE_S)
        except (httpx.HTTPError, httpx.InvalidURL) as error:
            kind = FetchError if isinstance(error, httpx.UnsupportedProtocol | httpx.InvalidURL) else PassingError
            found = f"{type(error).__name__} ({error}){through}"
            raise kind(f"{where}: found {found}; needed a service that answers") from error
        answer = _json(response)
        if response.status_code in (200, 202) and isinstance(answer, dict):
            return answer
        found = f"status {response.status_code}, {_said(answer, response.text)}{through}"
        if response.status_code in WORTH_A_RETRY:
            raise PassingError(f"{where}: found {found}; needed a plan", retry_after_s(response.headers))
        raise FetchError(f"{where}: found {found}; needed a plan")

    def _proxy(self) -> str:
        """Say which proxy of the environment is in between, without its credentials, and how to go without."""
        url = self._client.base_url
        proxies = urllib.request.getproxies()
        proxy = proxies.get(url.scheme) or proxies.get("all")
        if not proxy or not self._client.trust_env or urllib.request.proxy_bypass(url.host):
            return ""
        named = proxy.rpartition("@")[2]
        return f" through the proxy {named} of the environment (use_proxy=False or NO_PROXY={url.host} bypass it)"


def _json(response: httpx.Response) -> object:
    try:
        return response.json()
    except (ValueError, RecursionError):
        return None


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
