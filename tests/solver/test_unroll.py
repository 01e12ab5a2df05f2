from __future__ import annotations

import numpy as np
import pytest

from heuristic import best_per_placement
from solver.unroll import Pattern, applies, folded, in_sequence, shortened
from tests.heuristic.problems import linear, paper_problem, paper_rows, published_rows
from zbplan.instance import BW, B, F, Orders, W
from zbplan.plan import Plan
from zbplan.problem import Problem
from zbplan.simulate import measure
from zbplan.tighten import tighten
from zbplan.validate import check


def start_of(problem: Problem) -> Orders:
    return best_per_placement(problem)[0].orders


def gap_unrolled(problem: Problem, few: int) -> float:
    """Return by how much the schedule for few microbatches, unrolled for all, is longer than the constructive one."""
    instance, placement = problem.instance(), problem.placements[0]
    short = shortened(instance, few)
    orders = start_of(problem.model_copy(update={"microbatches": few}))
    unrolled = Pattern(short, in_sequence(short, orders)).unrolled(instance)
    assert unrolled is not None
    plan = check(Plan.build(problem, placement, unrolled, method="unrolled"))
    return plan.metrics.iteration_ms / Plan.build(problem, placement, start_of(problem), method="").metrics.iteration_ms


def test_few_microbatches_on_32_devices_make_a_plan_for_256() -> None:
    row = paper_rows()[11]
    assert (row["devices"], row["microbatches"]) == (32, 256)
    assert gap_unrolled(paper_problem(row, memory_limit="1x"), few=64) < 1.001


@pytest.mark.parametrize(("name", "method"), [("V-Min", "v_min"), ("V-Half", "v_half")])
def test_blocks_of_v_schedules_are_found(name: str, method: str) -> None:
    row = next(row for row in published_rows() if row["id"] == f"T8:6.2B:p16:m48:{name}")
    assert gap_unrolled(Problem.parse({**row["problem"], "method": method}), few=24) < 1.001


def test_a_block_left_out_and_repeated_again_gives_the_same_length() -> None:
    problem = paper_problem(paper_rows()[2], memory_limit="1x")
    instance = problem.instance()
    orders = in_sequence(instance, start_of(problem))
    short = shortened(instance, 16)
    start = folded(instance, orders, short)
    assert start is not None
    assert len(start.ops) == 16 / 64 * len(orders.ops)
    unrolled = Pattern(short, start).unrolled(instance)
    assert unrolled is not None
    lengths = [measure(instance, tighten(instance, each)).iteration for each in (orders, unrolled)]
    assert lengths[0] == lengths[1]


def test_orders_in_sequence_are_no_worse_whatever_sequence_they_had() -> None:
    problem = linear(4, 6, 3, 2, 1, comm=0.5, memory_limit="1x")
    instance = problem.instance()
    orders = in_sequence(instance, start_of(problem))
    given = orders.ops - orders.ops % 6 + np.array([2, 0, 1, 5, 4, 3])[orders.ops % 6]
    assert (in_sequence(instance, Orders(given, orders.offsets)).ops == orders.ops).all()


def test_bw_among_b_and_w_keeps_its_place() -> None:
    instance = linear(1, 2, 1, 1, 1, t_bw_ms=1).instance()
    code = instance.code
    orders = Orders.of([[code(F, 0, 1), code(BW, 0, 1), code(F, 0, 0), code(B, 0, 0), code(W, 0, 0)]])
    named = [instance.split(op) for op in in_sequence(instance, orders).ops]
    assert named == [(F, 0, 0), (BW, 0, 0), (F, 0, 1), (B, 0, 1), (W, 0, 1)]


def test_what_differs_between_microbatches_is_not_unrolled() -> None:
    assert applies(linear(2, 4, 1, 1, 1).instance())
    assert not applies(linear(2, 2, [1, [1, 2]], 1, 1).instance())
    assert not applies(linear(2, 4, 1, 1, 1, t_bw_ms=1).instance())
