"""Cuts: how the layers of a model can be cut in stages for each placement, and what is gained over the usual cuts."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from itertools import pairwise
from typing import Any

from rich.table import Table

from zbplan.draw.labels import placement_label
from zbplan.placement import Placement, stages_in


@dataclass(frozen=True)
class CutRow:
    """The best cut for one placement.

    Attributes
    ----------
    starts
        The first layer of each stage; None where no cut has a plan.
    iteration_ms, even_ms, shorter_ends_ms
        What the plans of this cut take, of the even cut, and of that with one layer fewer in the first and in the last
        stage; None where there is no such plan.
    """

    placement: Placement
    starts: Sequence[int] | None
    iteration_ms: float | None
    even_ms: float | None
    shorter_ends_ms: float | None

    def as_json(self, *, best: bool) -> dict[str, Any]:
        """Return the row as a JSON value."""
        return {
            "placement": self.placement,
            "stages": stages_in(self.placement),
            "starts": None if self.starts is None else list(self.starts),
            "iteration_ms": self.iteration_ms,
            "even_ms": self.even_ms,
            "shorter_ends_ms": self.shorter_ends_ms,
            "gain_over_even": _gain(self.iteration_ms, self.even_ms),
            "gain_over_shorter_ends": _gain(self.iteration_ms, self.shorter_ends_ms),
            "best": best,
        }


class Cuts:
    """Rows to compare; at least one has a cut, and the first of equals is the best."""

    def __init__(self, rows: Sequence[CutRow], layers: int) -> None:
        self._rows = rows
        self._layers = layers
        self._best = min((row for row in rows if row.iteration_ms is not None), key=lambda row: row.iteration_ms or 0.0)

    def as_json(self) -> dict[str, Any]:
        """Return the rows as a JSON value."""
        return {"layers": self._layers, "cuts": [row.as_json(best=row is self._best) for row in self._rows]}

    def gains(self) -> Iterator[str]:
        """Yield what the best cut gains over the best of each kind of usual cut."""
        for name, usual in (
            ("the even cut", [(row.even_ms, row) for row in self._rows]),
            ("one layer fewer on the first and last stage", [(row.shorter_ends_ms, row) for row in self._rows]),
        ):
            yield self._gained(name, [(ms, row) for ms, row in usual if ms is not None])

    def _gained(self, name: str, usual: Sequence[tuple[float, CutRow]]) -> str:
        if not usual:
            return f"over {name}: it has no plan for these placements and limits"
        best_ms, row = min(usual, key=lambda each: each[0])
        gain = _gain(self._best.iteration_ms, best_ms) or 0.0
        return f"{gain:.2%} less than {name}, at best {best_ms:.6g} ms ({placement_label(row.placement)})"

    def table(self) -> Table:
        """Return a table with a row per placement."""
        table = Table(box=None, pad_edge=False, padding=(0, 2, 0, 0))
        table.add_column("  placement", no_wrap=True)
        for heading in ("stages", "iteration\nms", "even\nms", "shorter\nends ms"):
            table.add_column(heading, justify="right", no_wrap=True)
        table.add_column("layers per stage")
        for row in self._rows:
            best = row is self._best
            times = [_ms(value) for value in (row.iteration_ms, row.even_ms, row.shorter_ends_ms)]
            name = f"{'*' if best else ' '} {placement_label(row.placement)}"
            sizes = self._sizes(row.starts)
            table.add_row(name, str(stages_in(row.placement)), *times, sizes, style="bold" if best else None)
        return table

    def _sizes(self, starts: Sequence[int] | None) -> str:
        if starts is None:
            return "no cut has a plan"
        return " ".join(str(last - first) for first, last in pairwise([*starts, self._layers]))


def _gain(iteration_ms: float | None, usual_ms: float | None) -> float | None:
    """Return the part of a usual cut's time that a cut saves."""
    return None if iteration_ms is None or not usual_ms else 1 - iteration_ms / usual_ms


def _ms(value: float | None) -> str:
    return "" if value is None else f"{value:.3f}"
