"""Comparison: what each method makes of a problem, as a table."""

from __future__ import annotations

from collections.abc import Iterator, Sequence

from rich.console import RenderableType
from rich.table import Table
from rich.text import Text

from zbplan.comparison import Comparison, Row
from zbplan.draw.labels import bound_label, bytes_label, placement_label


def lines(comparison: Comparison) -> Iterator[RenderableType]:
    """Yield a table with a row per method, then the bound, then why some methods have no plan."""
    yield _table(comparison.rows)
    yield Text(f"* best\n\n{bound_label(comparison.bound)}")
    for row in comparison.rows:
        if row.why_not is not None:
            yield Text(f"{row.method} ({placement_label(row.placement)}) is not legal: {row.why_not}")


def _table(rows: Sequence[Row]) -> Table:
    table = Table(box=None, pad_edge=False, padding=(0, 2, 0, 0))
    table.add_column("  method", no_wrap=True)
    for heading in ("iteration\nms", "makespan\nms", "bubble", "peak", "built\nin ms"):
        table.add_column(heading, justify="right", no_wrap=True)
    table.add_column("legal")
    table.add_column("placement", no_wrap=True)
    for row in rows:
        method = f"{'*' if row.best else ' '} {row.method}"
        style = "bold" if row.best else None
        table.add_row(method, *_costs(row), placement_label(row.placement), style=style)
    return table


def _costs(row: Row) -> list[str]:
    took = f"{row.build_ms:.1f}"
    if row.metrics is None:
        return ["", "", "", "", took, "no"]
    metrics = row.metrics
    times = [f"{metrics.iteration_ms:.3f}", f"{metrics.makespan_ms:.3f}", f"{metrics.bubble_rate:.1%}"]
    return [*times, bytes_label(max(metrics.peak_bytes)), took, "yes"]
