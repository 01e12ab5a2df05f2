"""Comparison: what each method makes of a problem."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Self

from zbplan.placement import Placement
from zbplan.plan import Bound, Metrics
from zbplan.record import Record


class Row(Record):
    """What one method makes of a problem on one placement.

    Attributes
    ----------
    method
        What was asked for.
    made_by
        The method that made the plan: another one where ``auto`` was asked for.
    starts
        The first layer of each stage, where the problem left the cut open; None where it gave the stages.
    build_ms
        Wall-clock milliseconds to know.
    metrics
        What its plan costs; None where it has no legal plan.
    why_not
        Why it has none.
    best
        Whether no other row takes less.
    """

    method: str
    made_by: str
    placement: Placement
    build_ms: float
    starts: list[int] | None = None
    metrics: Metrics | None = None
    why_not: str | None = None
    legal: bool = False
    best: bool = False


class Comparison(Record):
    """Rows in the order of merit, and the bound that holds for the best plan's placement."""

    key: str
    rows: list[Row]
    bound: Bound

    @classmethod
    def of(cls, key: str, rows: Iterable[Row], bound: Bound) -> Self:
        """Put rows in the order of merit and mark which are legal and which are best."""
        ranked = sorted(rows, key=_iteration_ms)
        marks = [{"legal": row.metrics is not None, "best": _is_best(row, ranked[0])} for row in ranked]
        marked = [row.model_copy(update=mark) for row, mark in zip(ranked, marks, strict=True)]
        return cls(key=key, rows=marked, bound=bound)


def _is_best(row: Row, first: Row) -> bool:
    return row.metrics is not None and _iteration_ms(row) == _iteration_ms(first)


def _iteration_ms(row: Row) -> float:
    return row.metrics.iteration_ms if row.metrics else float("inf")
