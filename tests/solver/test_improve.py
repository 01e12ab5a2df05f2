from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import pytest

from heuristic import best_per_placement, build
from solver import Options, solve
from solver.bounds import lower_bound
from solver.device_ops import DeviceOps
from solver.improve import improve
from solver.neighbourhood import Neighbourhood, Timed
from solver.process import External
from solver.unroll import in_sequence
from tests.heuristic.problems import equal_times, linear, paper_problem, paper_rows
from tests.solver.tiny import tiny_problem
from zbplan.instance import Instance, Orders
from zbplan.plan import Plan
from zbplan.problem import Problem
from zbplan.simulate import measure
from zbplan.tighten import tighten
from zbplan.validate import check


def start_of(problem: Problem) -> Orders:
    """Return orders that leave something to gain, however good the best constructive ones are."""
    return build(problem, problem.placements[0], "zb_greedy")


def objective(instance: Instance, orders: Orders) -> int:
    return measure(instance, tighten(instance, orders)).iteration


def tries(most: int) -> Iterator[bool]:
    """Yield whether to stop, which is not before it has been asked so often."""
    yield from (False for _ in range(most))
    while True:
        yield True


def improved(problem: Problem, windows: int) -> list[int]:
    """Return the objectives of all orders that some windows find, each a legal plan."""
    instance, asked, never = problem.instance(), tries(windows), tries(windows)
    found = improve(
        instance,
        start_of(problem),
        bound=lower_bound(instance).ticks,
        stop=lambda: next(asked),
        half=lambda: next(never),
    )
    ticks = []
    for orders in found:
        plan = check(Plan.build(problem, problem.placements[0], orders, method="improve"))
        ticks.append(instance.clock.units(plan.metrics.iteration_ms))
    return ticks


def scarce(**changes: Any) -> Problem:
    return linear(4, 8, 3.1, 2.9, 1.7, comm=0.1, m_b_bytes=3, memory_limit="0.75x", **changes)


@pytest.mark.parametrize("optimizer", ["synchronous", "post_validated"])
def test_windows_find_better_legal_orders_where_memory_is_scarce(optimizer: str) -> None:
    problem = scarce(optimizer=optimizer)
    found = improved(problem, windows=40)
    assert found
    assert found == sorted(set(found), reverse=True)
    assert found[-1] < objective(problem.instance(), start_of(problem))


def test_a_shorter_schedule_is_improved_and_unrolled() -> None:
    problem = scarce().model_copy(update={"microbatches": 200})
    instance, asked = problem.instance(), tries(40)
    first = next(improve(instance, start_of(problem), bound=0, stop=lambda: True, half=lambda: next(asked)))
    assert objective(instance, first) < objective(instance, start_of(problem))
    check(Plan.build(problem, problem.placements[0], first, method="improve"))


def test_equal_efforts_find_equal_orders() -> None:
    assert improved(scarce(), windows=20) == improved(scarce(), windows=20)


@pytest.mark.parametrize("part", range(2))
def test_a_window_over_everything_is_no_worse_and_legal_on_tiny_instances_of_every_kind(part: int) -> None:
    better = 0
    for seed in range(60 * part, 60 * part + 60):
        problem = tiny_problem(seed)
        instance, orders = problem.instance(), best_per_placement(problem)[0].orders
        timed = Timed(instance, in_sequence(instance, orders) if DeviceOps(instance).equal_microbatches else orders)
        assert timed.objective == objective(instance, timed.orders), seed
        new = Neighbourhood(timed, 0, timed.objective + 1, range(instance.devices)).improved(10)
        if new is not None:
            check(Plan.build(problem, problem.placements[0], new, method="improve"))
            assert objective(instance, new) <= timed.objective, seed
            better += objective(instance, new) < timed.objective
    assert better


def test_ops_after_a_window_keep_their_sequence() -> None:
    problem = equal_times("linear", 4, 4, 8, memory_limit="1x")
    instance = problem.instance()
    timed = Timed(instance, start_of(problem))
    half = timed.objective // 2
    for device in range(instance.devices):
        window = Neighbourhood(timed, 0, half, [device])
        orders = window.improved(1) or timed.orders
        outside = timed.start >= half
        assert (orders.ops[outside] == timed.orders.ops[outside]).all()


def test_as_a_part_it_works_at_any_size() -> None:
    problem = paper_problem(paper_rows()[9], memory_limit="1.125x", microbatches=256)
    plan = solve(problem, options=Options(time_limit_s=8, parts=(External("improve"),)))
    assert [run.part for run in plan.provenance.parts] == ["improve"]
    assert plan.provenance.parts[0].outcome in ("stopped", "done", "closed the gap")
    assert plan.metrics.iteration_ms <= solve(problem, options=Options(parts=())).metrics.iteration_ms
