from __future__ import annotations

import pytest

from heuristic import best_per_placement
from solver import Options, solve
from solver.bounds import lower_bound
from solver.cp_sat import solve_cp_sat
from solver.ilp import Program, solve_ilp
from tests.heuristic.problems import linear
from tests.solver.exact import optimum
from tests.solver.tiny import tiny_problem
from zbplan.instance import Orders
from zbplan.plan import Plan
from zbplan.problem import Problem
from zbplan.validate import check

ACCEPTED = {"highs": "MIP start solution is feasible", "cbc": "MIPStart provided solution with cost"}


def start_of(problem: Problem) -> Orders:
    return best_per_placement(problem)[0].orders


@pytest.mark.parametrize(("solver", "seeds"), [("highs", range(60)), ("cbc", range(100, 115))])
def test_it_agrees_with_brute_force_on_tiny_instances_of_every_kind(solver: str, seeds: range) -> None:
    for seed in seeds:
        problem = tiny_problem(seed)
        instance = problem.instance()
        outcome = solve_ilp(instance, start_of(problem), time_limit_s=60, solver=solver)
        assert outcome.orders is not None, seed
        plan = check(Plan.build(problem, problem.placements[0], outcome.orders, method="ilp"))
        best = optimum(instance)
        assert best is not None
        assert instance.clock.units(plan.metrics.iteration_ms) == best, seed
        assert best * (1 - 1e-6) - 1 <= outcome.bound <= best, seed


@pytest.mark.parametrize("solver", ["highs", "cbc"])
def test_times_of_very_different_size_prove_no_bound_above_the_optimum(solver: str) -> None:
    times = {
        "t_f_ms": 0,
        "t_b_ms": 6,
        "t_w_ms": 1000,
        "t_bw_ms": [
            [12.026309, 4.506721],
            1559452.882424,
            [3.779114, 10.124581],
            12.88177,
            [4.44327, 7.867735],
            11872.28,
        ],
        "t_comm_ms": {"forward": [1, 0, 2, 0, 2], "backward": [3, 3, 0, 1, 1]},
        "environment": {"placement": "v"},
    }
    memory = {"m_b_bytes": [[7, 4], [1, 2], 6, [2, 6], [3, 1], 2], "m_w_bytes": 6}
    asked = {"devices": 3, "microbatches": 2, "placement": "v", "optimizer": "post_validated"}
    problem = Problem.parse({"profile": {"stages": 6, **times, **memory}, **asked, "memory_limit": [9, 13, 12]})
    instance = problem.instance()
    best = 24_824_163_191  # by exhaustive search, which takes long
    outcome = solve_ilp(instance, start_of(problem), bound=lower_bound(instance).ticks, time_limit_s=60, solver=solver)
    assert best * (1 - 1e-3) <= outcome.bound <= best


def four_by_eight() -> Problem:
    return linear(4, 8, 18.522, 18.086, 9.337, comm=0.601, m_b_bytes=2, m_w_bytes=1, memory_limit="1x")


@pytest.mark.parametrize("solver", ["highs", "cbc"])
def test_the_log_says_that_the_start_was_accepted(solver: str) -> None:
    problem = linear(3, 4, 3, 2, 1, m_b_bytes=2, m_w_bytes=1, memory_limit="1x", method="1f1b")
    assert ACCEPTED[solver] in solve_ilp(problem.instance(), start_of(problem), time_limit_s=30, solver=solver).log


def test_it_agrees_with_cp_sat_on_four_devices_and_eight_microbatches() -> None:
    problem = four_by_eight()
    instance, start = problem.instance(), start_of(problem)
    bound = lower_bound(instance).ticks
    exact = solve_cp_sat(instance, start, bound=bound, time_limit_s=60)
    outcome = solve_ilp(instance, start, bound=bound, time_limit_s=60)
    assert exact.status == "OPTIMAL"
    assert exact.bound * (1 - 1e-6) <= outcome.bound <= exact.bound


@pytest.mark.parametrize("solver", ["highs", "cbc"])
def test_a_time_out_claims_no_more_than_is_known(solver: str) -> None:
    problem = linear(4, 8, 3.1, 2.9, 1.7, comm=0.1, m_b_bytes=3, memory_limit="0.75x")
    instance, start = problem.instance(), start_of(problem)
    exact = solve_cp_sat(instance, start, time_limit_s=60)
    assert exact.status == "OPTIMAL"
    outcome = solve_ilp(instance, start, time_limit_s=0.3, solver=solver)
    assert outcome.bound < exact.bound
    if outcome.orders is not None:
        check(Plan.build(problem, problem.placements[0], outcome.orders, method="ilp"))


def test_no_big_number_is_larger_than_the_times_it_has_to_release() -> None:
    problem = four_by_eight()
    program = Program(problem.instance(), start_of(problem))
    largest = max(abs(weight) for row in program.build().constraints() for weight in row.values())
    assert largest <= 2 * program.iteration.upBound


def test_the_method_uses_both_solvers_and_names_them() -> None:
    problem = linear(3, 4, 3.1, 2.9, 1.7, comm=0.1, method="ilp").model_copy(update={"time_limit_s": 60})
    best = solve(problem, options=Options(parts=()))
    plan = solve(problem)
    assert plan.metrics.iteration_ms <= best.metrics.iteration_ms
    assert {run.part for run in plan.provenance.parts} <= {"single_devices", "ilp_highs", "ilp_cbc"}
