"""Comparison: what each method makes of a problem, as a table."""

from __future__ import annotations

from collections.abc import Iterator, Sequence

from rich.console import RenderableType
from rich.table import Table
from rich.text import Text

from zbplan.comparison import Comparison, Row
from zbplan.draw.labels import bound_label, bytes_label, placement_label


def lines(comparison: Comparison) -> Iterator[RenderableType]:
    """Yield a table with a row per method, then the bound, how layers were cut, and why some methods have no plan."""
    yield _table(comparison.rows)
    yield Text(f"* best\n\n{bound_label(comparison.bound)}")
    for placement, starts in _cuts(comparison.rows).items():
        yield Text(f"{placement}: stages begin at layers {starts}")
    for row in comparison.rows:
        if row.why_not is not None:
            yield Text(f"{row.method} ({_placement(row)}) is not legal: {row.why_not}")


def _cuts(rows: Sequence[Row]) -> dict[str, str]:
    """Return how layers were cut for each placement; nothing where the stages were given."""
    return {_placement(row): " ".join(map(str, row.starts)) for row in rows if row.starts is not None}


def _placement(row: Row) -> str:
    """Return the placement's name, with its stages per device where layers were cut for several that share it."""
    name = placement_label(row.placement)
    return f"{name} x{len(row.placement[0])}" if name == "interleaved" and row.starts is not None else name


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
        table.add_row(method, *_costs(row), _placement(row), style=style)
    return table


def _costs(row: Row) -> list[str]:
    took = f"{row.build_ms:.1f}"
    if row.metrics is None:
        return ["", "", "", "", took, "no"]
    metrics = row.metrics
    times = [f"{metrics.iteration_ms:.3f}", f"{metrics.makespan_ms:.3f}", f"{metrics.bubble_rate:.1%}"]
    return [*times, bytes_label(max(metrics.peak_bytes)), took, "yes"]
