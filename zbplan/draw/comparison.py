"""Comparison: what each method makes of a problem, as a table."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import asdict, dataclass

from rich.console import RenderableType
from rich.table import Table
from rich.text import Text

from zbplan.draw.labels import bound_label, bytes_label, placement_label
from zbplan.placement import Placement
from zbplan.plan import Bound, Metrics


@dataclass(frozen=True)
class Row:
    """What one method makes of a problem on one placement.

    Attributes
    ----------
    method
        What was asked for.
    made_by
        The method that made the plan: another one where ``auto`` was asked for.
    metrics
        What its plan costs; None where it has no legal plan.
    why_not
        Why it has none.
    build_ms
        Wall-clock milliseconds to know.
    """

    method: str
    made_by: str
    placement: Placement
    build_ms: float
    metrics: Metrics | None = None
    why_not: str | None = None


class Comparison:
    """Rows in the order of merit, and the bound that holds for the best plan's placement."""

    def __init__(self, rows: Sequence[Row], bound: Bound) -> None:
        self._rows = sorted(rows, key=_iteration_ms)
        self._bound = bound

    def as_json(self) -> dict[str, object]:
        """Return one JSON value."""
        rows = [
            {
                **asdict(row),
                "metrics": row.metrics.model_dump() if row.metrics else None,
                "legal": row.metrics is not None,
                "best": self._is_best(row),
            }
            for row in self._rows
        ]
        return {"rows": rows, "bound": self._bound.model_dump()}

    def lines(self) -> Iterator[RenderableType]:
        """Yield a table with a row per method, then the bound, then why some methods have no plan."""
        yield self._table()
        yield Text(f"* best\n\n{bound_label(self._bound)}")
        for row in self._rows:
            if row.why_not is not None:
                yield Text(f"{row.method} ({placement_label(row.placement)}) is not legal: {row.why_not}")

    def _is_best(self, row: Row) -> bool:
        return row.metrics is not None and _iteration_ms(row) == _iteration_ms(self._rows[0])

    def _table(self) -> Table:
        table = Table(box=None, pad_edge=False, padding=(0, 2, 0, 0))
        table.add_column("  method", no_wrap=True)
        for heading in ("iteration\nms", "makespan\nms", "bubble", "peak", "built\nin ms"):
            table.add_column(heading, justify="right", no_wrap=True)
        table.add_column("legal")
        table.add_column("placement", no_wrap=True)
        for row in self._rows:
            method = f"{'*' if self._is_best(row) else ' '} {row.method}"
            style = "bold" if self._is_best(row) else None
            table.add_row(method, *_costs(row), placement_label(row.placement), style=style)
        return table


def _iteration_ms(row: Row) -> float:
    return row.metrics.iteration_ms if row.metrics else float("inf")


def _costs(row: Row) -> list[str]:
    took = f"{row.build_ms:.1f}"
    if row.metrics is None:
        return ["", "", "", "", took, "no"]
    metrics = row.metrics
    times = [f"{metrics.iteration_ms:.3f}", f"{metrics.makespan_ms:.3f}", f"{metrics.bubble_rate:.1%}"]
    return [*times, bytes_label(max(metrics.peak_bytes)), took, "yes"]
