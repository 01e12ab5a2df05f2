"""Verdict: what a trace report means, in words, and what to do about it."""

from __future__ import annotations

from collections.abc import Iterator

from zbplan.trace_report import KindReport, Report

SLOWER = 0.05
"""An op that takes longer or shorter by this part than profiled is worth a word."""

MATTERS = 0.01
"""Less than this part of the iteration is not."""

MOST_OUTSIDE = 0.2
"""Part of an iteration that may pass between steps."""

MOST_HOST = 0.05
"""Part of a step that the host may spend between ops."""

MOST_MEMORY = 1.02
"""Peak memory, in parts of the predicted, up to which the accounting holds."""

NAMED = 3
"""How many slower kinds of ops are named."""


def verdict(report: Report) -> list[str]:
    """Return one sentence per thing to know, the most important first; never nothing."""
    found = [
        *_outside(report),
        *_durations(report),
        *_transfers(report),
        *_host(report),
        *_memory(report),
        *_warmth(report),
        *_clocks(report),
    ]
    return [*_iteration(report, explained=bool(found)), *found]


def _iteration(report: Report, *, explained: bool) -> Iterator[str]:
    planned, measured, ratio = report.iteration_ms.planned, report.iteration_ms.measured, report.iteration_ms.ratio
    took = f"the iteration takes {measured:.4g} ms where {planned:.4g} are planned"
    if ratio is None or abs(ratio - 1) <= SLOWER:
        yield f"{took}: as planned" if not explained else took
    elif explained or report.first_divergence is None:
        yield f"{took} ({ratio - 1:+.0%})"
    else:
        first = report.first_divergence
        where = f"{first.op} on device {first.device}"
        yield f"{took} ({ratio - 1:+.0%}), and nothing stands out: see {where}, where it begins"


def _outside(report: Report) -> Iterator[str]:
    if report.outside_step is not None and report.outside_step > MOST_OUTSIDE:
        yield (
            f"your schedule is not the bottleneck: {report.outside_step:.0%} of {report.period_ms:.4g} ms from step to "
            "step pass outside the step (data, optimizer)"
        )


def _durations(report: Report) -> Iterator[str]:
    """Name the kinds of ops that differ most, by what they add to the iteration."""
    differing = [kind for kind in report.kinds if _is_notable(kind, report)]
    differing.sort(key=lambda kind: -abs(_difference_ms(kind)))
    for kind in differing[:NAMED]:
        whose = f"device {kind.device}'s {kind.kind} (stage {kind.stage})"
        yield f"{whose} {_how_different(kind)}: profile again, or plan on this trace (--replan)"
    if len(differing) > NAMED:
        yield f"and {len(differing) - NAMED} more kinds of ops differ from the profile"


def _how_different(kind: KindReport) -> str:
    if not kind.took_ms.planned:
        return "takes time where none was profiled"
    share = _difference_ms(kind) / kind.took_ms.planned
    return f"is {abs(share):.0%} {'slower' if share > 0 else 'faster'} than profiled"


def _difference_ms(kind: KindReport) -> float:
    return (kind.took_ms.measured or 0.0) - (kind.took_ms.planned or 0.0)


def _is_notable(kind: KindReport, report: Report) -> bool:
    of_iteration = abs(_difference_ms(kind)) * kind.samples / report.steps
    planned = kind.took_ms.planned or 0.0
    matters = of_iteration > MATTERS * (report.iteration_ms.planned or 0.0)
    return matters and abs(_difference_ms(kind)) > SLOWER * planned


def _transfers(report: Report) -> Iterator[str]:
    for transfer in report.transfers:
        planned, measured = transfer.took_ms.planned or 0.0, transfer.took_ms.measured
        if measured is not None and measured - planned > MATTERS * (report.iteration_ms.planned or 0.0):
            yield (
                f"transfers from stage {transfer.from_stage} to {transfer.to_stage} take {measured:.3g} ms where "
                f"{planned:.3g} are planned: measure T_comm again, or plan on this trace (--replan)"
            )


def _host(report: Report) -> Iterator[str]:
    device = max(report.devices, key=lambda device: device.host_ms)
    share = device.host_ms / device.step_ms if device.step_ms else 0.0
    if share > MOST_HOST:
        yield (
            f"device {device.device} spends {share:.0%} of its step outside F, B, W and transfers: where gradients are "
            "averaged over data-parallel ranks, overlap_grad_reduce=True runs that beside W; a post-validated step is "
            "validated there; else look for hooks, logging or synchronization between ops, or take fewer, larger "
            "microbatches"
        )


def _memory(report: Report) -> Iterator[str]:
    for device in report.devices:
        ratio = device.peak_bytes.ratio
        if ratio is not None and ratio > MOST_MEMORY:
            yield (
                f"device {device.device} needs {ratio:.2f} times the memory planned "
                f"({device.peak_bytes.measured:.4g} of {device.peak_bytes.planned:.4g} bytes): measure memory again, "
                "with the optimizer's state; a plan counts no transfers under way (boundary_bytes each)"
            )


def _warmth(report: Report) -> Iterator[str]:
    if not report.is_warm:
        yield "these are the first steps of the job, which allocate and compile: trace later ones"


def _clocks(report: Report) -> Iterator[str]:
    ops_ms = [kind.took_ms.measured for kind in report.kinds if kind.took_ms.measured]
    if ops_ms and report.clock_error_ms > min(ops_ms) / 2:
        yield (
            f"the clocks of two devices may be off by {report.clock_error_ms:.3g} ms, which is no less than half of "
            "the shortest op: trust durations, not starts"
        )
