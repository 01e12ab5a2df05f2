from __future__ import annotations

from typing import Any

import pytest

from heuristic import best_per_placement, build
from solver.bounds import lower_bound
from solver.cp_sat import Listener, Model, Settings, solve_cp_sat
from tests.heuristic.problems import linear
from tests.solver.exact import optimum
from tests.solver.tiny import tiny_problem
from zbplan.instance import Orders
from zbplan.plan import Plan
from zbplan.problem import Problem
from zbplan.simulate import measure
from zbplan.tighten import tighten
from zbplan.validate import check

ACCEPTED = "The solution hint is complete and is feasible."

TIGHT = {"m_b_bytes": 2, "m_w_bytes": 1, "memory_limit": "1x"}


def start_of(problem: Problem) -> Orders:
    return best_per_placement(problem)[0].orders


@pytest.mark.parametrize("part", range(2))
def test_cp_sat_agrees_with_brute_force_on_tiny_instances_of_every_kind(part: int) -> None:
    for seed in range(60 * part, 60 * part + 60):
        problem = tiny_problem(seed)
        instance = problem.instance()
        outcome = solve_cp_sat(instance, start_of(problem), time_limit_s=60, settings=Settings(workers=1))
        assert outcome.status == "OPTIMAL", seed
        assert outcome.orders is not None
        plan = check(Plan.build(problem, problem.placements[0], outcome.orders, method="cp_sat"))
        assert instance.clock.units(plan.metrics.iteration_ms) == outcome.bound == optimum(instance), seed


def test_the_bound_as_a_cut_and_a_start_that_meets_it_leave_nothing_to_do() -> None:
    problem = linear(4, 8, 3, 3, 2, m_b_bytes=2, m_w_bytes=1, memory_limit="2x")
    instance = problem.instance()
    bound = lower_bound(instance).ticks
    start = start_of(problem)
    assert measure(instance, tighten(instance, start)).iteration == bound
    outcome = solve_cp_sat(instance, start, bound=bound, time_limit_s=60)
    assert (outcome.status, outcome.bound) == ("OPTIMAL", bound)


def test_two_devices_alone_never_take_longer_than_the_optimum_of_all() -> None:
    reached = 0
    for seed in range(12):
        problem = tiny_problem(seed, ("linear", 3, 3, 2))
        instance, best = problem.instance(), optimum(problem.instance())
        assert best is not None
        for pair in ([0, 1], [1, 2], [0, 2]):
            outcome = solve_cp_sat(
                instance, start_of(problem), time_limit_s=60, settings=Settings(workers=1), devices=pair
            )
            assert outcome.bound <= best, (seed, pair)
            reached += outcome.bound == best
    assert reached


def test_a_start_that_contradicts_itself_does_no_harm(monkeypatch: pytest.MonkeyPatch) -> None:
    def backwards(model: Model) -> None:
        for at, literal in enumerate(model._before.values()):
            if literal.index >= 0:
                model.model.add_hint(literal, at % 2 == 0)
        for op, start in model.start.items():
            model.model.add_hint(start, model.horizon - op[1] - op[2])

    monkeypatch.setattr(Model, "_hint", backwards)
    for seed in range(20):
        problem = tiny_problem(seed)
        outcome = solve_cp_sat(problem.instance(), start_of(problem), time_limit_s=60, settings=Settings(workers=1))
        assert (outcome.status, outcome.bound) == ("OPTIMAL", optimum(problem.instance())), seed


def test_a_span_of_many_ticks_is_settled_where_microbatches_differ() -> None:
    """Were the whole schedule free to move in time, refuting one tick after the other would take for ever."""
    profile = {"stages": 2, "t_f_ms": [6.599, 0], "t_b_ms": 9.811471, "t_w_ms": 2.1, "splittable": [True, False]}
    held = {"m_b_bytes": [[2, 3], 3], "m_w_bytes": 0, "t_comm_ms": 1}
    for placement, devices in (("v", 1), ("linear", 2)):
        asked = {"placement": placement, "devices": devices, "microbatches": 2, "optimizer": "post_validated"}
        problem = Problem.parse({"profile": {**profile, **held}, **asked})
        outcome = solve_cp_sat(problem.instance(), start_of(problem), time_limit_s=20, settings=Settings(workers=1))
        assert (outcome.status, outcome.bound) == ("OPTIMAL", optimum(problem.instance())), placement


@pytest.mark.parametrize(
    ("placement", "times", "held", "limits", "optimizer"),
    [
        (
            "interleaved",
            {
                "t_f_ms": 636637.488,
                "t_b_ms": [1623583.4, 2070558.607734, 2457804.338, 3638198.612],
                "t_w_ms": [2426531.331134, 1626574.141032, 3116665.789, 1099569.154],
                "t_comm_ms": 0,
            },
            {"m_b_bytes": 0, "m_w_bytes": 3, "m_peak_bytes": [1, 2, 2, 2], "splittable": [False, True, False, True]},
            [5, 6],
            "post_validated",
        ),
        (
            "v",
            {
                "t_f_ms": [87249512.9, 79063598.397252, 22864574.973, 24872261.379879],
                "t_b_ms": 19730639.3,
                "t_w_ms": [94069963.905, 17150953.982, 79990053.7, 15825753.17227],
                "t_bw_ms": [0, 0, 0, 63166336.557],
                "t_comm_ms": 27786574.062798,
            },
            {"m_b_bytes": 1, "m_w_bytes": 2},
            [3, 101],
            "synchronous",
        ),
    ],
)
def test_long_times_of_many_digits_keep_the_optimum(
    placement: str, times: dict[str, Any], held: dict[str, Any], limits: list[int], optimizer: str
) -> None:
    """Where BW is a choice and numbers are large, CP-SAT's presolve would cut it off."""
    asked = {"placement": placement, "memory_limit": limits, "optimizer": optimizer, "devices": 2, "microbatches": 1}
    problem = Problem.parse({"profile": {"stages": 4, **times, **held}, **asked})
    instance = problem.instance()
    best = optimum(instance)
    start = build(problem, problem.placements[0], "gpipe")
    outcome = solve_cp_sat(instance, start, time_limit_s=20, settings=Settings(workers=1))
    assert outcome.status == "OPTIMAL"
    assert outcome.orders is not None
    assert best is not None
    assert outcome.bound <= best <= measure(instance, tighten(instance, outcome.orders)).iteration <= best * (1 + 1e-6)
    assert outcome.bound == pytest.approx(best, rel=1e-6)


def solve_logged(problem: Problem) -> str:
    lines: list[str] = []
    solve_cp_sat(problem.instance(), start_of(problem), time_limit_s=30, settings=Settings(log=lines.append))
    return "\n".join(lines)


@pytest.mark.parametrize(("devices", "placement"), [(4, "linear"), (2, "v"), (2, "interleaved")])
def test_the_log_says_that_the_start_is_complete_and_feasible(devices: int, placement: str) -> None:
    profile = {"stages": 4, "t_f_ms": 3, "t_b_ms": 2, "t_w_ms": 1, "t_comm_ms": 0, "m_b_bytes": 2, "m_w_bytes": 1}
    asked = {"placement": placement, "memory_limit": "1x", "optimizer": "post_validated"}
    problem = Problem.parse({"profile": profile, "devices": devices, "microbatches": 4, **asked})
    assert ACCEPTED in solve_logged(problem)


def test_a_fused_start_is_accepted_where_bw_is_worth_it() -> None:
    problem = linear(3, 3, 3, 2, 2, t_bw_ms=3, m_b_bytes=1, m_w_bytes=3, memory_limit="1x")
    assert ACCEPTED in solve_logged(problem)


def test_better_orders_and_bounds_are_told_as_they_are_found() -> None:
    problem = linear(4, 8, 3.1, 2.9, 1.7, comm=0.1, m_b_bytes=3, m_w_bytes=1, memory_limit="0.75x")
    instance = problem.instance()
    values: list[int] = []
    bounds: list[int] = []
    listener = Listener(
        on_orders=lambda orders: values.append(measure(instance, tighten(instance, orders)).iteration),
        on_bound=bounds.append,
    )
    outcome = solve_cp_sat(instance, start_of(problem), time_limit_s=60, listener=listener)
    assert outcome.status == "OPTIMAL"
    assert values == sorted(values, reverse=True)
    assert bounds == sorted(bounds)
    assert min(values) == outcome.bound >= max(bounds)


@pytest.mark.parametrize("factor", [1, 1e-6, 1e11])
def test_times_of_any_size_give_the_same_schedule_in_proportion(factor: float) -> None:
    times = (3 * factor, 2 * factor, 1 * factor)
    problem = linear(3, 4, *times, comm=factor, **TIGHT)
    instance = problem.instance()
    outcome = solve_cp_sat(instance, start_of(problem), time_limit_s=60)
    assert outcome.status == "OPTIMAL"
    assert instance.clock.value(outcome.bound) == pytest.approx(40 * factor, rel=1e-9)
