"""Handing a profile to the service."""

from __future__ import annotations

import time

import httpx

from profiler.errors import PostError
from zbplan.client import WORTH_A_RETRY, PassingError, bearer, patiently, retry_after_s
from zbplan.profile import Profile

PATIENCE_S = 60.0
"""How long after the call an attempt may begin: devices do not idle for as long as a service asks to be left alone."""


def post(profile: Profile, url: str, *, token: str | None = None, timeout_s: float = 10.0) -> str:
    """Post a profile to ``URL/v1/profiles`` and return that address.

    A service that is not there, is busy or breaks is asked again.

    Parameters
    ----------
    token
        Sent as a bearer token.
    timeout_s
        For each attempt.

    Raises
    ------
    PostError
        When the service refuses, or still cannot be reached at the last attempt, or no header can carry the token.
    """
    target = f"{url.rstrip('/')}/v1/profiles"
    headers = {"content-type": "application/json"} | bearer(token, PostError)
    body = profile.to_json()
    patiently(lambda: _attempt(target, body, headers, timeout_s), PostError, deadline_s=time.monotonic() + PATIENCE_S)
    return target


def _attempt(target: str, body: str, headers: dict[str, str], timeout_s: float) -> None:
    try:
        answer = httpx.post(target, content=body, headers=headers, timeout=timeout_s)
    except (httpx.HTTPError, httpx.InvalidURL) as error:
        kind = PostError if isinstance(error, httpx.UnsupportedProtocol | httpx.InvalidURL) else PassingError
        raise kind(f"{target}: found {type(error).__name__}: {error}; needed a service that answers") from error
    if answer.is_success:
        return
    refused = f"{target}: found status {answer.status_code}: {answer.text[:500]}; needed 200 or 201"
    if answer.status_code in WORTH_A_RETRY:
        raise PassingError(refused, retry_after_s(answer.headers))
    raise PostError(refused)
