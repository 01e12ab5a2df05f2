"""Replan: the profile that a trace shows, to plan anew on what really ran."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any

import numpy as np
from pydantic import JsonValue

from zbplan.duration import DIGITS, FEWEST, NEVER, Duration
from zbplan.errors import Finding, InvalidInputError
from zbplan.evidence import TIMES, Samples
from zbplan.instance import BW, B, F, W
from zbplan.joined import WARM_UP_STEPS, Joined
from zbplan.plan import Plan
from zbplan.profile import Profile
from zbplan.trace import Trace
from zbplan.trace_report import transfer_durations

KIND_OF = dict(zip(TIMES, (F, B, W, BW), strict=True))
SPLIT = ("t_b_ms", "t_w_ms")


@dataclass(frozen=True)
class _Column:
    """A time of one stage: what the profile shall say, and the samples behind it (none if it was not measured)."""

    ms: float | list[float]
    sampled: Duration


def measured_profile(plan: Plan, trace: Trace, *, force: bool = False) -> Profile:
    """Return the plan's profile with the times of a trace: medians over microbatches and steady steps.

    Where the plan's profile has a number per microbatch, so has this one. A job that trains shows neither memory nor
    transfers that nobody waited for: those are the plan's. Where a stage ran only BW though it may be split, its B and
    W are the plan's, stretched as BW is, and marked as estimated.

    Raises
    ------
    InvalidInputError
        If the trace is of another plan, has fewer than 3 steady steps, is of a job whose last W of a stage ran for
        those before it, or, without ``force``, has samples that scatter too much to be trusted.
    """
    _refuse_overlapped(trace)
    joined = Joined.of(plan, trace)
    if len(joined.steps) < FEWEST or not joined.is_warm:
        found = len(joined.steps) if joined.is_warm else 0
        needed = f"{FEWEST} or more behind the first {WARM_UP_STEPS}, which are never steady"
        raise InvalidInputError([Finding("$.steps", f"{found} steady steps", needed)])
    base = plan.planned.profile
    columns = {name: [_column(joined, base, name, stage) for stage in range(base.stages)] for name in KIND_OF}
    estimated = _stretch_unsplit(base, columns)
    transfers = transfer_durations(joined)
    doubts = list(_doubts(columns, transfers))
    if doubts and not force:
        raise InvalidInputError(doubts)
    return _assembled(joined, base, columns, transfers, estimated, [str(doubt) for doubt in doubts])


def _refuse_overlapped(trace: Trace) -> None:
    if trace.environment.get("overlap_grad_reduce"):
        found = "true: the last W of a stage took the time of those before it"
        needed = "a trace of the same job with overlap_grad_reduce=False, where each W takes its own"
        raise InvalidInputError([Finding("$.environment.overlap_grad_reduce", found, needed)])


def _column(joined: Joined, base: Profile, name: str, stage: int) -> _Column:
    """Return the median of a time, per microbatch where the profile has it so; what was not run stays as it was."""
    before = base.per_stage(name)[stage]
    ops = np.flatnonzero((joined.stage == stage) & (joined.kind == KIND_OF[name]))
    if not len(ops):
        return _Column(before, NEVER)
    samples = joined.took_ms[:, ops]
    if not isinstance(before, list):
        whole = Duration.of(samples.ravel().tolist())
        return _Column(round(whole.median_ms, DIGITS), whole)
    each = dict(zip(joined.microbatch[ops].tolist(), map(Duration.of, samples.T.tolist()), strict=True))
    ms = [round(each[at].median_ms, DIGITS) if at in each else old for at, old in enumerate(before)]
    return _Column(ms, max(each.values(), key=lambda duration: duration.spread_ms))


def _stretch_unsplit(base: Profile, columns: dict[str, list[_Column]]) -> list[str]:
    """Give stages that only ran BW a B and a W, and those that never ran it the BW that follows from both.

    Returns the names of the fields that are no longer measured.
    """
    estimated = False
    for stage, (split, fused) in enumerate(zip(base.splits(), columns["t_bw_ms"], strict=True)):
        if columns["t_b_ms"][stage].sampled is NEVER:
            before = np.mean(base.per_stage("t_bw_ms")[stage])
            stretch = float(np.mean(fused.ms) / before) if before else 1.0
            for name in SPLIT:
                columns[name][stage] = _Column(_scaled(columns[name][stage].ms, stretch), NEVER)
            estimated = estimated or split
        elif fused.sampled is NEVER:
            sums = np.add(columns["t_b_ms"][stage].ms, columns["t_w_ms"][stage].ms)
            columns["t_bw_ms"][stage] = _Column(np.round(sums, DIGITS).tolist(), NEVER)
    return list(SPLIT) if estimated else []


def _scaled(ms: float | list[float], factor: float) -> float | list[float]:
    scaled: float | list[float] = np.round(np.multiply(ms, factor), DIGITS).tolist()
    return scaled


def _doubts(columns: dict[str, list[_Column]], transfers: dict[tuple[int, int], Duration]) -> Iterator[Finding]:
    stages = range(len(columns["t_f_ms"]))
    busy_ms = [sum(float(np.mean(columns[name][stage].ms)) for name in ("t_f_ms", *SPLIT)) for stage in stages]
    for name, column in columns.items():
        for stage, entry in enumerate(column):
            yield from _doubt(f"{name} of stage {stage}", entry.sampled, busy_ms[stage])
    for (stage, way), duration in transfers.items():
        yield from _doubt(
            f"T_comm from stage {stage} to {stage + way}", duration, min(busy_ms[stage], busy_ms[stage + way])
        )


def _doubt(where: str, duration: Duration, busy_ms: float) -> Iterator[Finding]:
    doubt = duration.doubt(busy_ms) if duration.samples >= FEWEST else None
    if doubt is not None:
        advice = "trace more steps of a job that runs alone, or keep it with --force"
        yield Finding(where, doubt.found, f"{doubt.needed}: {advice}")


def _assembled(
    joined: Joined,
    base: Profile,
    columns: dict[str, list[_Column]],
    transfers: dict[tuple[int, int], Duration],
    estimated: list[str],
    forced: list[str],
) -> Profile:
    t_comm_ms, comm_samples = _t_comm(base, transfers)
    fused = any(entry.sampled is not NEVER for entry in columns["t_bw_ms"])
    statistics: dict[str, Any] = {
        name: Samples.of([entry.sampled for entry in column]) for name, column in columns.items()
    }
    environment: dict[str, JsonValue] = {**base.environment, "turns": "in_situ", "steps": len(joined.steps)}
    return Profile.parse(
        {
            **base.model_dump(exclude={"layers", "checks"}),
            **{name: [entry.ms for entry in column] for name, column in columns.items()},
            **({} if fused else {"t_bw_ms": None}),
            "t_comm_ms": t_comm_ms,
            "statistics": {**statistics, **({"t_comm_ms": comm_samples} if comm_samples else {})},
            "estimated": estimated,
            "forced": forced,
            "environment": environment | ({"placement": joined.plan.placement} if comm_samples else {}),
        }
    )


def _t_comm(base: Profile, transfers: dict[tuple[int, int], Duration]) -> tuple[Any, dict[str, Any] | None]:
    """Return T_comm with what was measured of it, and the samples behind it; None where nothing was."""
    known = {boundary: found for boundary, found in transfers.items() if found.samples >= FEWEST}
    if not known:
        return base.t_comm_ms if isinstance(base.t_comm_ms, float) else base.t_comm_ms.model_dump(), None
    before, boundaries = base.comm(), range(base.stages - 1)
    found = {
        "forward": [known.get((at, 1), NEVER) for at in boundaries],
        "backward": [known.get((at + 1, -1), NEVER) for at in boundaries],
    }
    ms = {
        way: [
            old if new is NEVER else round(new.median_ms, DIGITS)
            for old, new in zip(getattr(before, way), durations, strict=True)
        ]
        for way, durations in found.items()
    }
    return ms, {way: Samples.of(durations) for way, durations in found.items()}
