"""Start-up: rank 0 gets the plan, every rank receives the same bytes and checks that all have."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

import torch
import torch.distributed as dist

from runtime_client.agreement import agree, together, transport_device
from runtime_client.errors import FetchError
from runtime_client.obtain import obtain
from zbplan.errors import ZbplanError
from zbplan.plan import Plan
from zbplan.problem import Problem

_PLAN, _ERROR = 0, 1


def fetch(
    url: str,
    problem_or_key: Problem | Mapping[str, Any] | str,
    *,
    group: dist.ProcessGroup | None = None,
    timeout_s: float = 300.0,
    token: str | None = None,
    use_proxy: bool = True,
    cache: str | Path | None = None,
) -> Plan:
    """Return the service's plan on every rank of a group; only rank 0 talks to the service.

    What the service gave is kept on disk. When it does not answer, rank 0 takes that copy, or else builds a plan, and
    says so with a ``PlanFallbackWarning``.

    Parameters
    ----------
    url
        Where the service answers, such as ``http://planner:8642``.
    problem_or_key
        A problem, which is planned if it was not, or the key of one that was.
    group
        The pipeline's process group; the default group if None. Every rank of it must call.
    timeout_s
        How long rank 0 waits for the plan. The group's own time-out must be longer.
    token
        Sent to the service as a bearer token.
    use_proxy
        False bypasses the proxy that the environment names.
    cache
        The folder on rank 0's disk, of mode 0700; None is ``zbplan/plans`` in the user's cache folder.

    Raises
    ------
    FetchError
        On every rank, if rank 0 could not get a plan in any way: from a key alone it can build none.
    PlanDigestError
        If what ranks received differs.
    RankGoneError
        If a rank does not join within the group's time-out.
    """
    options: dict[str, Any] = {"timeout_s": timeout_s, "token": token, "use_proxy": use_proxy, "cache": cache}
    return _from_rank_0(lambda: obtain(url, problem_or_key, **options), group)


def broadcast(plan: Plan | bytes | None, *, group: dist.ProcessGroup | None = None) -> Plan:
    """Return rank 0's plan (or its JSON text) on every rank of a group; other ranks may pass None.

    Raises
    ------
    FetchError
        On every rank, if rank 0 passed no plan.
    PlanDigestError
        If what ranks received differs.
    RankGoneError
        If a rank does not join within the group's time-out.
    """
    return _from_rank_0(lambda: _parsed(plan), group)


def _parsed(plan: Plan | bytes | None) -> Plan:
    if plan is None:
        raise FetchError("found no plan on rank 0; needed one: pass it there")
    return Plan.parse_json(plan) if isinstance(plan, bytes) else plan


def _from_rank_0(obtain: Callable[[], Plan], group: dist.ProcessGroup | None) -> Plan:
    is_source = dist.get_rank(group) == 0
    status, content = _outcome(obtain) if is_source else (_PLAN, b"")
    with together("receiving the plan", group):
        status, content = _broadcast_bytes(status, content, group)
    agree(content, group=group)
    if status == _ERROR:
        raise FetchError(f"rank 0 got no plan: {content.decode()}")
    return Plan.parse_json(content)


def _outcome(obtain: Callable[[], Plan]) -> tuple[int, bytes]:
    """Return the plan as bytes, or whatever went wrong: the other ranks wait and must hear of it."""
    try:
        return _PLAN, obtain().to_json().encode()
    except ZbplanError as error:
        return _ERROR, str(error).encode()
    except Exception as error:
        return _ERROR, f"{type(error).__name__}: {error}".encode()


def _broadcast_bytes(status: int, content: bytes, group: dist.ProcessGroup | None) -> tuple[int, bytes]:
    device = transport_device(group)
    header = torch.tensor([status, len(content)], dtype=torch.int64, device=device)
    dist.broadcast(header, group=group, group_src=0)
    status, length = header.tolist()
    payload = torch.empty(length, dtype=torch.uint8, device=device)
    if content:
        payload.copy_(torch.frombuffer(bytearray(content), dtype=torch.uint8))
    dist.broadcast(payload, group=group, group_src=0)
    return status, bytes(payload.cpu().numpy())
