"""Trace report: a plan against what really ran, as tables."""

from __future__ import annotations

from collections.abc import Iterator, Sequence

from rich.console import RenderableType
from rich.table import Table
from rich.text import Text

from zbplan.draw.labels import bytes_label
from zbplan.trace_report import Compared, KindReport, Report
from zbplan.verdict import verdict


def lines(report: Report) -> Iterator[RenderableType]:
    """Yield the verdict, the figures of the iteration, then tables of ops, their waits, transfers and devices."""
    for sentence in verdict(report):
        yield Text(f"• {sentence}", style="bold")
    yield Text()
    yield from _iteration(report)
    yield Text()
    yield _kinds(report)
    yield Text()
    yield _waits(report)
    yield Text()
    if report.transfers:
        yield _transfers(report)
        yield Text()
    yield _devices(report)


def _iteration(report: Report) -> Iterator[Text]:
    figures = [
        ("iteration ms", report.iteration_ms, "{:.4g}"),
        ("bubble", report.bubble_rate, "{:.1%}"),
        ("bubble in the steady state", report.steady_bubble_rate, "{:.1%}"),
    ]
    for name, figure, form in figures:
        planned, measured = (_text(value, form) for value in (figure.planned, figure.measured))
        yield Text(f"{name}: planned {planned}, measured {measured}")
    yield Text(f"outside F, B, W and transfers: {report.outside_ops:.1%} of the time")
    if report.period_ms is not None:
        yield Text(f"from step to step {report.period_ms:.4g} ms, {report.outside_step:.1%} of it outside the step")
    if report.tokens_per_s is not None:
        yield Text(f"{report.tokens_per_s:,.0f} tokens per second")
    if report.first_divergence is not None:
        first = report.first_divergence
        ended = f"ended at {first.end_ms.measured:.4g} ms, planned {first.end_ms.planned:.4g}"
        yield Text(f"first off the plan: {first.op} on device {first.device} {ended}: {first.why}")
    yield Text(f"medians of {report.steps} steps; times of two devices may be off by {report.clock_error_ms:.3g} ms")


def _kinds(report: Report) -> Table:
    table = _table("stage", "device", "op", "planned ms", "measured ms", "error", "spread ms")
    for kind in report.kinds:
        table.add_row(*_which(kind), *_times(kind.took_ms), f"{kind.spread_ms:.3f}")
    return table


def _waits(report: Report) -> Table:
    """Return a row per kind and stage: waits of an op in milliseconds, on average, planned and measured."""
    table = _table("stage", "device", "op", "starts later by", "waits for input", "waits for device")
    for kind in report.kinds:
        waits = [_planned_to_measured(figure) for figure in (kind.dependency_wait_ms, kind.resource_wait_ms)]
        table.add_row(*_which(kind), f"{kind.start_error_ms:+.3f}", *waits)
    return table


def _which(kind: KindReport) -> tuple[str, str, str]:
    return str(kind.stage), str(kind.device), kind.kind


def _transfers(report: Report) -> Table:
    table = _table("from stage", "to stage", "planned ms", "measured ms", "error", "waited for")
    for transfer in report.transfers:
        stages = (str(transfer.from_stage), str(transfer.to_stage))
        table.add_row(*stages, *_times(transfer.took_ms), f"{transfer.samples} times")
    return table


def _devices(report: Report) -> Table:
    table = _table("device", "step ms", "ops", "waiting", "sending", "host", "peak planned", "peak measured")
    for device in report.devices:
        parts = (device.ops_ms.measured, device.waiting_ms.measured, device.sending_ms, device.host_ms)
        peaks = (device.peak_bytes.planned, device.peak_bytes.measured)
        table.add_row(
            str(device.device),
            f"{device.step_ms:.3f}",
            *(f"{(part or 0.0) / device.step_ms:.1%}" if device.step_ms else "" for part in parts),
            *("not counted" if peak is None else bytes_label(peak) for peak in peaks),
        )
    return table


def _table(*headings: str) -> Table:
    table = Table(box=None, pad_edge=False, padding=(0, 2, 0, 0))
    for heading in headings:
        table.add_column(heading, justify="right", no_wrap=True)
    return table


def _planned_to_measured(figure: Compared) -> str:
    return f"{_text(figure.planned, '{:.2f}')} to {_text(figure.measured, '{:.2f}')}"


def _times(figure: Compared) -> Sequence[str]:
    error = None if figure.ratio is None else figure.ratio - 1
    return (_text(figure.planned, "{:.3f}"), _text(figure.measured, "{:.3f}"), _text(error, "{:+.1%}"))


def _text(value: float | None, form: str) -> str:
    return "-" if value is None else form.format(value)
