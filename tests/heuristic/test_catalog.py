from __future__ import annotations

from typing import Any

import pytest
from hypothesis import given, settings

from heuristic import PLANNER, Built, Refused, build, candidates, construct
from tests.heuristic.problems import chunk_problem, chunk_rows, linear, paper_problem, paper_rows, published_rows
from tests.strategies import problems
from zbplan.errors import InfeasibleError, MethodError
from zbplan.instance import BW, F
from zbplan.plan import Plan
from zbplan.problem import Problem
from zbplan.simulate import memory_curve
from zbplan.validate import validate

LINEAR = ("gpipe", "1f1b", "zb_h1", "zb_h2", "zb_greedy")

# Real profile of a 32-layer model whose last stage holds the head: milliseconds and megabytes.
UNEVEN = {
    "f": [30.715, 29.233, 29.106, 29.078, 28.85, 28.919, 28.924, 41.678],
    "b": [31.308, 29.344, 29.357, 29.455, 29.217, 29.384, 29.354, 38.731],
    "w": [18.746, 18.789, 19.062, 19.367, 19.455, 19.967, 20.096, 32.833],
    "comm": 0.473,
    "m_b_bytes": [943, 1240, 1240, 1240, 1240, 1240, 1240, 1071],
    "m_w_bytes": [410, 552, 552, 552, 552, 552, 552, 483],
}


def makespans(problem: Problem) -> dict[str, float]:
    return {made.method: made.plan.metrics.makespan_ms for made in candidates(problem) if isinstance(made, Built)}


@settings(deadline=None, max_examples=150)
@given(problems(placements=("linear", "v", "interleaved")))
def test_every_constructive_plan_is_legal(problem: Problem) -> None:
    made = candidates(problem)
    assert isinstance(made[-1], Built)
    assert made[-1].method == PLANNER
    for candidate in made:
        if isinstance(candidate, Built):
            assert validate(candidate.plan) == [], candidate.method


@settings(deadline=None, max_examples=50)
@given(problems(placements=("linear",)))
def test_zb_greedy_has_a_plan_under_every_feasible_limit(problem: Problem) -> None:
    assert build(problem, problem.placements[0], "zb_greedy").ops.size


def test_no_published_row_is_slower_than_1f1b() -> None:
    for row in published_rows():
        problem = Problem.parse(row["problem"])
        if problem.devices * problem.microbatches <= 8 * 64:
            made = [candidate for candidate in candidates(problem) if isinstance(candidate, Built)]
            fused = [built.measures.iteration for built in made if built.method == "1f1b"]
            assert not fused or min(built.measures.iteration for built in made) <= fused[0], row["id"]


@pytest.mark.parametrize("method", LINEAR)
def test_fewer_microbatches_than_devices_are_scheduled(method: str) -> None:
    problem = linear(8, 1, 1, 1, 1, method=method)
    assert construct(problem).provenance.method == method
    assert makespans(linear(4, 2, 1, 1, 1))["1f1b"] == 15
    assert makespans(linear(4, 1, 1, 1, 1))["1f1b"] == 12


def test_many_devices_and_microbatches_are_scheduled() -> None:
    assert construct(linear(64, 512, 10, 10, 10, comm=1, method="1f1b")).metrics.makespan_ms == 18382


@pytest.mark.parametrize(
    "row", [pytest.param(row, id=f"{row['model']}-m{row['microbatches']}") for row in chunk_rows()]
)
def test_bubbles_are_those_of_the_paper_for_v(row: dict[str, Any]) -> None:
    on_v = {"placement": "v", "memory_limit": "1x"}
    for name, bubble_rate in row["bubble_rate"].items():
        method = name.lower().replace("-", "_")
        problem = chunk_problem(row, method=method, **(on_v if method == "zb_v" else {}))
        assert construct(problem).metrics.bubble_rate == pytest.approx(bubble_rate, abs=6e-5), method


@pytest.mark.parametrize("method", LINEAR)
def test_one_device_has_no_bubble_and_no_transfers(method: str) -> None:
    metrics = construct(linear(1, 4, 10, 10, 10, comm=5, method=method)).metrics
    assert (metrics.makespan_ms, metrics.bubble_rate) == (120, 0)


def test_a_frozen_stage_keeps_its_zero_weight_time() -> None:
    plan = construct(linear(4, 8, 10, 10, [0, 10, 10, 10], comm=1, method="1f1b"))
    assert plan.metrics.makespan_ms == 334
    assert plan.metrics.busy_ms == [160, 240, 240, 240]


def test_uneven_stages_keep_their_own_times() -> None:
    problem = linear(8, 32, *(UNEVEN[field] for field in "fbw"), **{k: v for k, v in UNEVEN.items() if k not in "fbw"})
    assert makespans(problem)["1f1b"] == pytest.approx(4178.092, abs=0.001)
    fused = construct(Problem.parse({**problem.model_dump(), "method": "1f1b"})).metrics
    assert fused.mean_idle_rate == pytest.approx(0.367, abs=0.0005)
    metrics = construct(problem).metrics
    assert metrics.makespan_ms == pytest.approx(3831.88, abs=0.001)
    assert max(metrics.busy_ms) == pytest.approx(3623.744, abs=0.001)
    assert metrics.bubble_rate == pytest.approx(1 - 3623.744 / 3831.88, abs=1e-6)
    assert metrics.mean_idle_rate > 0.3 > metrics.bubble_rate


@pytest.mark.parametrize("method", LINEAR)
def test_a_stage_starts_as_soon_as_its_first_input_is_there(method: str) -> None:
    problem = linear(4, 8, 7, 8, 5, comm=0.5, method=method)
    first = construct(problem).devices[1]
    assert (first.kind[0], first.microbatch[0], first.start_ms[0]) == ("F", 0, 7.5)


def test_transfers_longer_than_work_are_not_dropped() -> None:
    made = makespans(linear(4, 8, 5, 5, 5, comm=20))
    assert made["1f1b"] == 485
    assert min(made.values()) == 235


def test_times_of_millennia_are_written_to_the_tick() -> None:
    weights = [10056529.190677062, 1284406.9170754552, 10209189.347718041]
    made = candidates(linear(3, 1, [8e14, 1e14, 3], 0, weights))
    plans = [candidate.plan for candidate in made if isinstance(candidate, Built)]
    assert len(plans) == 6
    assert [validate(plan) for plan in plans] == [[]] * 6


def test_b_may_take_memory_when_it_starts() -> None:
    problem = linear(4, 8, 2, 2, 1, m_b_bytes=100, m_w_bytes=120, memory_limit=480)
    plan = construct(problem)
    assert validate(plan) == []
    assert max(plan.metrics.peak_bytes) <= 480
    assert "B" in plan.devices[0].kind


def test_each_device_has_its_own_limit_and_peak() -> None:
    limits = [16000.0] * 7 + [9000.0]
    times = [UNEVEN[field] for field in "fbw"]
    rest = {name: value for name, value in UNEVEN.items() if name not in "fbw"}
    problem = linear(8, 32, *times, **rest, memory_limit=limits)
    refused = {made.method: str(made.error) for made in candidates(problem) if isinstance(made, Refused)}
    assert refused["zb_h2"] == "method 'zb_h2': takes 17224 bytes on device 1, where memory_limit is 16000"
    peaks = construct(problem).metrics.peak_bytes
    assert all(peak <= limit for peak, limit in zip(peaks, limits, strict=True))
    assert peaks[7] > 1071


def test_w_that_holds_more_than_b_is_not_delayed_where_memory_is_short() -> None:
    problem = linear(4, 8, 2, 2, 1, m_b_bytes=10, m_w_bytes=100, memory_limit=130)
    instance = problem.instance()
    orders = build(problem, problem.placements[0], "zb_greedy")
    for device in range(4):
        kinds = [instance.split(op)[0] for op in orders.on(device).tolist()]
        pending = 0
        for kind in kinds:
            pending += {F: 0, 1: 1, 2: -1, BW: 0}[kind]
            assert pending <= 1
        assert memory_curve(instance, orders.on(device), device).max() <= instance.room[device]


@pytest.mark.parametrize("limit", [0, 1000, 1239.9])
def test_a_limit_below_one_microbatch_is_infeasible_and_says_what_would_do(limit: float) -> None:
    problem = linear(2, 4, 1, 1, 1, m_b_bytes=[1240, 943], m_w_bytes=410, memory_limit=limit)
    with pytest.raises(InfeasibleError, match=r"device 0 has .* and needs 1240") as caught:
        construct(problem)
    assert caught.value.smallest_limit_bytes == (1240, 943)


def test_a_limit_of_exactly_one_microbatch_is_feasible() -> None:
    problem = linear(2, 4, 1, 1, 1, m_b_bytes=[1240, 943], m_w_bytes=410, memory_limit=[1240, 943])
    assert construct(problem).metrics.peak_bytes == [1240, 943]


def test_a_named_schedule_that_does_not_fit_names_those_that_do() -> None:
    problem = linear(4, 8, 1, 1, 1, memory_limit=4, method="gpipe")
    with pytest.raises(MethodError, match="takes 8 bytes on device 0, where memory_limit is 4") as caught:
        construct(problem)
    assert caught.value.instead == ("1f1b", "zb_h1", "zb_greedy", "heuristic", "auto")


def test_a_schedule_that_is_not_constructive_names_those_that_are() -> None:
    with pytest.raises(MethodError, match="'ilp': is not a constructive schedule; methods that can: gpipe, 1f1b"):
        construct(linear(2, 4, 1, 1, 1, method="ilp"))


def test_more_memory_never_gives_a_slower_plan() -> None:
    row = paper_rows()[0]
    limits = [f"{eighth / 8}x" for eighth in range(1, 20)]
    problems = [paper_problem(row, memory_limit=limit, optimizer="post_validated") for limit in limits]
    iterations = [construct(problem).metrics.iteration_ms for problem in problems]
    assert iterations == sorted(iterations, reverse=True)
    assert iterations[-1] == pytest.approx(1152.599, abs=0.001)


def test_equal_plans_are_told_apart_by_the_sequence_of_methods() -> None:
    assert construct(linear(1, 4, 10, 10, 10)).provenance.method == "gpipe"


def test_the_best_plan_does_not_depend_on_the_run() -> None:
    problem = linear(4, 8, 7, 8, 5, comm=0.5)
    first, second = construct(problem), construct(Problem.parse_json(problem.to_json()))
    assert isinstance(first, Plan)
    assert first.plan_id == second.plan_id
