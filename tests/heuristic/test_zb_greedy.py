from __future__ import annotations

from typing import Any

import pytest

from heuristic.zb_greedy import zb_greedy
from tests.heuristic.problems import linear, paper_problem, paper_rows, published_rows
from zbplan.instance import BW
from zbplan.problem import Problem
from zbplan.simulate import measure, simulate

ROWS = [pytest.param(row, id=f"{row['model']}-m{row['microbatches']}") for row in paper_rows()]


@pytest.mark.parametrize("row", ROWS)
@pytest.mark.parametrize(("limit", "name"), [("1x", "ZB-1p"), ("2x", "ZB-2p")])
def test_bubble_is_that_of_table_5_by_longest_device_span(row: dict[str, Any], limit: str, name: str) -> None:
    instance = paper_problem(row, optimizer="post_validated", memory_limit=limit).instance()
    measures = measure(instance, simulate(instance, zb_greedy(instance)))
    assert measures.bubble_rate == pytest.approx(row["bubble_rate"][name], abs=0.001)
    assert (measures.peak <= instance.room).all()


def test_no_span_is_longer_than_the_published_one() -> None:
    for row in published_rows():
        if row["problem"]["placement"] == "linear" and row["published"]["span_ms"] is not None:
            instance = Problem.parse(row["problem"]).instance()
            iteration = measure(instance, simulate(instance, zb_greedy(instance))).iteration
            assert instance.clock.value(iteration) <= row["published"]["span_ms"] + 0.0006, row["id"]


def test_b_runs_as_bw_where_its_weight_gradients_do_not_fit() -> None:
    instance = linear(2, 4, 2, 2, 1, m_b_bytes=10, m_w_bytes=100, memory_limit=20).instance()
    orders = zb_greedy(instance)
    assert {instance.split(op)[0] for op in orders.ops.tolist()} == {0, BW}
    assert (measure(instance, simulate(instance, orders)).peak <= instance.room).all()
