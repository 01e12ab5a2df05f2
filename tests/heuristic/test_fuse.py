from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from heuristic.fuse import fuse
from heuristic.list_schedule import list_schedule, task_of
from heuristic.objective import at_best
from heuristic.repertoire import repertoire
from heuristic.variation import Variation
from heuristic.zb_h1 import zb_h1
from tests.heuristic.problems import linear
from tests.strategies import problems
from zbplan.instance import BW
from zbplan.plan import Plan
from zbplan.problem import Problem
from zbplan.validate import validate


@settings(deadline=None, max_examples=100)
@given(problems(placements=("linear", "v", "interleaved")), st.integers(0, 20))
def test_fused_orders_are_legal_and_no_slower(problem: Problem, rule: int) -> None:
    instance = problem.instance()
    orders = list_schedule(task_of(instance), list(repertoire(Variation(instance)))[rule])
    fused = fuse(instance, orders)
    assert validate(Plan.build(problem, problem.placements[0], fused, method="planner")) == []
    assert at_best(instance, fused) <= at_best(instance, orders)


def test_one_device_fuses_everything_that_is_shorter() -> None:
    instance = linear(1, 4, 3, 2, 2, t_bw_ms=3).instance()
    fused = fuse(instance, zb_h1(instance))
    assert (fused.ops >= instance.code(BW, 0, 0)).sum() == 4
    assert instance.clock.value(at_best(instance, fused)) == pytest.approx(4 * (3 + 3))


def test_nothing_is_fused_where_that_is_no_shorter() -> None:
    instance = linear(4, 8, 3, 2, 2).instance()
    orders = zb_h1(instance)
    np.testing.assert_array_equal(fuse(instance, orders).ops, orders.ops)


def test_the_first_stage_fuses_for_no_gradient_waits_for_it() -> None:
    instance = linear(4, 8, 3, 2, 2, t_bw_ms=3.5, optimizer="post_validated").instance()
    orders = zb_h1(instance)
    fused = fuse(instance, orders)
    assert at_best(instance, fused) < at_best(instance, orders)
    assert (fused.on(0) >= instance.code(BW, 0, 0)).any()
