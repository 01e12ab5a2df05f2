from __future__ import annotations

import pytest

from heuristic import build
from solver.axis import Axis
from solver.cp_sat import Settings, solve_cp_sat
from solver.ilp import solve_ilp
from tests.heuristic.problems import linear
from tests.solver.exact import optimum
from zbplan.problem import Problem


def half_a_unit() -> Problem:
    """Whole milliseconds, but the best longest span is the mean of two paths between the devices: 29.5 ms."""
    profile = {
        "stages": 2,
        "t_f_ms": [[1, 7], 2],
        "t_b_ms": 1,
        "t_w_ms": [[8, 2], [2, 21]],
        "t_comm_ms": {"forward": [5], "backward": [7]},
        "m_b_bytes": 1,
        "m_w_bytes": 1,
    }
    return Problem.parse({"profile": profile, "devices": 2, "microbatches": 2, "optimizer": "post_validated"})


def test_the_best_span_may_be_a_fraction_of_what_all_times_have_in_common() -> None:
    problem = half_a_unit()
    instance = problem.instance()
    start = build(problem, problem.placements[0], "1f1b")
    best = optimum(instance)
    assert best == instance.clock.units(29.5)
    assert solve_cp_sat(instance, start, time_limit_s=60, settings=Settings(workers=1)).bound == best
    assert solve_ilp(instance, start, time_limit_s=60).bound == best


@pytest.mark.parametrize(
    ("optimizer", "proven_ms", "bound_ms"),
    [("synchronous", 28.01, 29), ("post_validated", 28.4, 28.5), ("post_validated", 28.6, 29)],
)
def test_a_proof_is_as_good_as_the_least_objective_above_it(optimizer: str, proven_ms: float, bound_ms: float) -> None:
    instance = linear(2, 2, 3, 2, 1, comm=1, optimizer=optimizer).instance()
    axis = Axis(instance, instance.clock.units(40))
    proven = instance.clock.units(proven_ms) / axis.unit * axis.parts
    assert instance.clock.value(axis.bound(proven)) == bound_ms
