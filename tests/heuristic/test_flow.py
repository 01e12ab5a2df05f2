from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given, settings

from heuristic.flow import counts, even_flow, sketch
from heuristic.objective import iteration
from solver.bounds import lower_bound
from tests.heuristic.problems import linear
from tests.strategies import problems
from zbplan.instance import F
from zbplan.plan import Plan
from zbplan.problem import Problem
from zbplan.validate import validate


@settings(deadline=None, max_examples=60)
@given(problems(placements=("linear", "v", "interleaved")))
def test_orders_are_legal_under_any_limit_and_tries_are_no_worse_than_the_sketch(problem: Problem) -> None:
    (placement,) = problem.placements
    instance = problem.instance()
    if (instance.smallest_room > instance.room).any():
        return
    sketched, tried = sketch(instance), even_flow(instance)
    assert validate(Plan.build(problem, placement, sketched, method="planner")) == []
    assert validate(Plan.build(problem, placement, tried, method="planner")) == []
    assert iteration(instance, tried) <= iteration(instance, sketched)


def scarce(placement: str, limit: str) -> Problem:
    profile = {"stages": 32, "t_f_ms": 3, "t_b_ms": 3, "t_w_ms": 2, "t_comm_ms": 0.5, "m_b_bytes": 3, "m_w_bytes": 1}
    asked = {"devices": 16, "microbatches": 64, "placement": placement, "memory_limit": limit}
    return Problem.parse({"profile": profile, **asked})


@pytest.mark.parametrize("placement", ["v", "interleaved"])
@pytest.mark.parametrize("limit", ["0.25x", "0.5x", "2x"])
def test_one_schedule_is_sensible_where_memory_is_scarce(placement: str, limit: str) -> None:
    instance = scarce(placement, limit).instance()
    assert iteration(instance, sketch(instance)) <= 1.6 * lower_bound(instance).ticks


def test_the_flow_fills_memory_and_thins_out_towards_the_last_stage() -> None:
    instance = scarce("v", "0.25x").instance()
    held = counts(instance)
    needed = [int((held * instance.hold[F, :, 0])[list(stages)].sum()) for stages in instance.stages_of]
    assert all(0.8 * room <= units <= room for units, room in zip(needed, instance.room.tolist(), strict=True))
    assert (np.diff(held) <= 0).all()


def test_zero_times_have_a_flow() -> None:
    instance = linear(3, 4, 0, 0, 0, m_b_bytes=1, memory_limit=2).instance()
    assert counts(instance).tolist() == [2, 2, 2]
