"""Obtain: the plan from the service; else the copy on disk; else one built here. Planning never fails a job."""

from __future__ import annotations

import warnings
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from runtime_client.errors import FetchError
from runtime_client.plan_cache import CacheError, PlanCache, default_folder
from runtime_client.service import download, key_of, parse_asked
from zbplan.errors import ZbplanError
from zbplan.plan import Plan
from zbplan.problem import Problem


class PlanFallbackWarning(UserWarning):
    """The service gave no plan; the message says which plan is used instead."""


class PlanCacheWarning(UserWarning):
    """The plan could not be kept on disk for the next start."""


def obtain(
    url: str,
    problem_or_key: Problem | Mapping[str, Any] | str,
    *,
    timeout_s: float,
    token: str | None = None,
    use_proxy: bool = True,
    cache: str | Path | None = None,
) -> Plan:
    """Return the plan of a problem or key.

    Parameters
    ----------
    url, problem_or_key, timeout_s, token, use_proxy
        As for ``service.download``.
    cache
        The folder of ``PlanCache``; None takes the user's own.

    Raises
    ------
    FetchError
        If the service gave no plan, none is on disk, and none can be built: from a key alone there is no way to.
    InvalidInputError
        If the problem is none.
    """
    asked = parse_asked(problem_or_key)
    kept = PlanCache(default_folder() if cache is None else cache)
    try:
        plan = download(url, asked, timeout_s=timeout_s, token=token, use_proxy=use_proxy)
    except FetchError as error:
        return _fallback(error, asked, kept)
    try:
        kept.keep(plan)
    except CacheError as error:
        warnings.warn(f"the plan is not kept for the next start: {error}", PlanCacheWarning, stacklevel=2)
    return plan


def _fallback(error: FetchError, asked: Problem | str, kept: PlanCache) -> Plan:
    key = key_of(asked)
    try:
        plan = kept.get(key)
        used = f"the copy on disk, {kept.path(key)}, by {plan.provenance.method}"
    except CacheError as none_kept:
        plan = _built(error, none_kept, asked)
        used = f"a plan built here by {plan.provenance.method}, {plan.metrics.iteration_ms:.6g} ms, without a bound"
    warnings.warn(f"{error}; using {used}", PlanFallbackWarning, stacklevel=3)
    return plan


def _built(error: FetchError, none_kept: CacheError, asked: Problem | str) -> Plan:
    if isinstance(asked, str):
        raise FetchError(
            f"{error}; no copy on disk ({none_kept}); a key alone is not enough to build a plan here: "
            "pass the problem instead"
        ) from error
    from heuristic import construct

    try:
        return construct(asked)
    except ZbplanError as refused:
        raise FetchError(f"{error}; no copy on disk ({none_kept}); no plan built here: {refused}") from error
