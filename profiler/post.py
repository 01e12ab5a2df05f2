"""Handing a profile to the service."""

from __future__ import annotations

import random
import time

import httpx

from profiler.errors import PostError
from zbplan.profile import Profile

ATTEMPTS = 5
FIRST_PAUSE_S = 0.5
LONGEST_PAUSE_S = 8.0
WORTH_A_RETRY = (408, 425, 429, 500, 502, 503, 504)


def post(profile: Profile, url: str, *, token: str | None = None, timeout_s: float = 10.0) -> str:
    """Post a profile to ``URL/v1/profiles`` and return that address.

    A service that is not there, is busy or breaks is asked again, after pauses that double and are cut short at
    random, so that many that fail together do not come back together.

    Parameters
    ----------
    token
        Sent as a bearer token.
    timeout_s
        For each attempt.

    Raises
    ------
    PostError
        When the service refuses, or still cannot be reached at the last attempt.
    """
    target = f"{url.rstrip('/')}/v1/profiles"
    headers = {"content-type": "application/json"} | ({"authorization": f"Bearer {token}"} if token else {})
    body = profile.to_json()
    for attempt in range(1, ATTEMPTS + 1):
        error = _attempt(target, body, headers, timeout_s)
        if error is None:
            return target
        if attempt == ATTEMPTS or not error.worth_a_retry:
            raise error
        longest_s = min(FIRST_PAUSE_S * 2 ** (attempt - 1), LONGEST_PAUSE_S)
        time.sleep(random.uniform(longest_s / 2, longest_s))  # noqa: S311 (no secret)
    raise AssertionError("unreachable")


def _attempt(target: str, body: str, headers: dict[str, str], timeout_s: float) -> PostError | None:
    try:
        answer = httpx.post(target, content=body, headers=headers, timeout=timeout_s)
    except (httpx.HTTPError, httpx.InvalidURL) as error:
        found = f"{target}: found {type(error).__name__}: {error}; needed a service that answers"
        never = isinstance(error, httpx.UnsupportedProtocol | httpx.InvalidURL)
        return PostError(found, worth_a_retry=not never)
    if answer.is_success:
        return None
    found = f"{target}: found status {answer.status_code}: {answer.text[:500]}; needed 200 or 201"
    return PostError(found, worth_a_retry=answer.status_code in WORTH_A_RETRY)
