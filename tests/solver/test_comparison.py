from __future__ import annotations

from typing import Any

import pytest

from solver import Options, compare
from tests.heuristic.partition.layered import layered
from zbplan.errors import InfeasibleError
from zbplan.problem import Problem

WORK = [1, 2, 2, 2, 2, 3]
AT_ONCE = Options(parts=())


def open_layers(**changes: Any) -> Problem:
    return layered({"t_f_ms": WORK, "t_b_ms": WORK, "t_w_ms": WORK}, devices=2, microbatches=4, **changes)


def test_methods_are_compared_on_one_cut_per_placement_which_is_told() -> None:
    problem = open_layers(memory_limit="2x", method="1f1b")
    found = compare(problem, options=AT_ONCE)
    cuts = {str(row.placement): row.starts for row in found.rows}
    assert len(cuts) == len(problem.placements)
    assert all(row.starts == cuts[str(row.placement)] for row in found.rows)
    assert found.key == open_layers(memory_limit="2x").key
    (auto,) = [row for row in found.rows if row.method == "auto"]
    assert auto.best
    assert found.bound.iteration_ms <= auto.metrics.iteration_ms


def test_where_no_cut_fits_nothing_is_compared() -> None:
    with pytest.raises(InfeasibleError, match="too small for any cut"):
        compare(open_layers(memory_limit=1), options=AT_ONCE)


def test_where_stages_are_given_no_cut_is_told() -> None:
    cut = open_layers().cut([0, 3], [[0], [1]])
    assert {row.starts is None for row in compare(cut, options=AT_ONCE).rows} == {True}
