"""Handing a profile to the service."""

from __future__ import annotations

import httpx

from profiler.errors import PostError
from zbplan.profile import Profile

TIMEOUT_S = 10.0


def post(profile: Profile, url: str) -> None:
    """Post a profile to ``URL/v1/profiles``.

    Raises
    ------
    PostError
        When the service cannot be reached or refuses.
    """
    target = f"{url.rstrip('/')}/v1/profiles"
    headers = {"content-type": "application/json"}
    try:
        answer = httpx.post(target, content=profile.to_json(), headers=headers, timeout=TIMEOUT_S)
    except (httpx.HTTPError, httpx.InvalidURL) as error:
        raise PostError(f"{target}: found {type(error).__name__}: {error}; needed a service that answers") from error
    if not answer.is_success:
        raise PostError(f"{target}: found status {answer.status_code}: {answer.text[:500]}; needed 200 or 201")
