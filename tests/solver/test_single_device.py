from __future__ import annotations

import pytest

from heuristic import best_per_placement
from solver.cp_sat import Settings, solve_cp_sat
from solver.least import Least
from solver.single_device import single_device_bound
from tests.heuristic.problems import paper_problem, paper_rows, published_rows
from tests.solver.equal import equal_problem
from zbplan.problem import Problem

NO_TARGET = 1 << 60


@pytest.mark.parametrize("width", [1, 4])
def test_no_device_alone_takes_longer_than_the_optimum(width: int) -> None:
    reached = 0
    for seed in range(60):
        problem = equal_problem(seed)
        instance = problem.instance()
        least = Least(instance)
        start = best_per_placement(problem)[0].orders
        outcome = solve_cp_sat(instance, start, time_limit_s=60, settings=Settings(workers=1))
        assert outcome.status == "OPTIMAL", seed
        for device in range(instance.devices):
            bound = single_device_bound(least, device, target=NO_TARGET, width=width)
            assert bound <= outcome.bound, (seed, device)
            reached += bound == outcome.bound
    assert reached


@pytest.mark.parametrize(("limit", "span_ms"), [("0.5x", 2001.525), ("0.75x", 1472.185), ("0.9x", 1356.35)])
def test_scarce_memory_on_the_first_device_proves_more_than_the_analytic_bounds(limit: str, span_ms: float) -> None:
    instance = paper_problem(paper_rows()[0], memory_limit=limit).instance()
    span = single_device_bound(Least(instance), 0, target=NO_TARGET)
    assert instance.clock.value(span) == pytest.approx(span_ms)


def test_scarce_memory_on_the_last_device_of_a_v_proves_most_of_what_v_min_takes() -> None:
    row = next(row for row in published_rows() if row["id"] == "T8:6.2B:p16:m48:V-Min")
    instance = Problem.parse(row["problem"]).instance()
    span = single_device_bound(Least(instance), 15, target=instance.clock.units(5511.082), width=1)
    assert instance.clock.value(span) == pytest.approx(5311.307)


def test_it_never_claims_more_than_the_known_plan() -> None:
    instance = paper_problem(paper_rows()[0], memory_limit="0.5x").instance()
    assert single_device_bound(Least(instance), 0, target=10**9) == 10**9


def test_it_proves_nothing_once_stopped() -> None:
    instance = paper_problem(paper_rows()[0], memory_limit="0.5x").instance()
    assert single_device_bound(Least(instance), 0, target=NO_TARGET, stop=lambda: True) == 0


def test_microbatches_that_hold_nothing_may_all_be_under_way_at_once() -> None:
    profile = {"stages": 2, "t_f_ms": 1, "t_b_ms": 1, "t_w_ms": 1, "t_comm_ms": 5, "m_b_bytes": 0, "m_w_bytes": 0}
    instance = Problem.parse({"profile": profile, "devices": 2, "microbatches": 3, "memory_limit": 0}).instance()
    assert instance.clock.value(single_device_bound(Least(instance), 0, target=NO_TARGET)) == 19
