"""Waits: why a plan takes as long as it does, op by op."""

from __future__ import annotations

from collections.abc import Iterable, Iterator

from rich.text import Text

from zbplan.graph import Wait, avoidable_gaps, critical_path
from zbplan.plan import Plan

MAX_GAPS = 10


def waits(plan: Plan) -> Iterator[Text]:
    """Yield the critical path of a legal plan as lines, then its avoidable gaps, if any."""
    path = critical_path(plan)
    yield Text(f"\ncritical path: {len(path)} ops", style="bold")
    yield from _lines(path)
    gaps = avoidable_gaps(plan)
    if gaps:
        total = sum(gap.gap_ms for gap in gaps)
        yield Text(f"\navoidable gaps: {len(gaps)} ops could start earlier, {total:g} ms in all", style="bold")
        yield from _lines(gaps[:MAX_GAPS])
    if len(gaps) > MAX_GAPS:
        yield Text(f"and {len(gaps) - MAX_GAPS} more")


def _lines(waits: Iterable[Wait]) -> Iterator[Text]:
    for wait in waits:
        op = wait.op
        yield Text(f"{op.start_ms:>12.3f} ms  device {op.device}  {op}: {wait}")
