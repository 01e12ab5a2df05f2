from __future__ import annotations

import re

import pytest
from hypothesis import given, settings

from heuristic import Built, candidates
from solver.bounds import RULES, Least, busiest_device, lower_bound
from tests.heuristic.problems import linear, paper_problem, paper_rows, published_rows
from tests.solver.exact import optimum
from tests.solver.tiny import tiny_problem
from tests.strategies import problems
from zbplan.problem import Problem


def test_no_bound_is_above_the_exact_optimum_of_a_tiny_instance() -> None:
    tight = dict.fromkeys(RULES, 0)
    for seed in range(400):
        instance = tiny_problem(seed).instance()
        best = optimum(instance)
        assert best is not None, seed
        for rule in RULES:
            bound = rule(Least(instance)).ticks
            assert bound <= best, (seed, rule.__name__)
            tight[rule] += bound == best
    assert all(tight.values())


@settings(deadline=None, max_examples=200)
@given(problems(placements=("linear", "v", "interleaved")))
def test_no_bound_is_above_any_legal_plan(problem: Problem) -> None:
    bound = lower_bound(problem.instance()).ticks
    assert all(bound <= made.measures.iteration for made in candidates(problem) if isinstance(made, Built))


@pytest.mark.parametrize("asks", [0, 1, 7, 40])
def test_bounds_that_nobody_waits_for_leave_those_that_are_there(asks: int) -> None:
    memory = [[1 + stage + at for at in range(6)] for stage in range(4)]
    problem = linear(4, 6, 3, 2, 1, comm=1, m_b_bytes=memory, m_w_bytes=1, memory_limit="1x")
    instance = problem.instance()
    answers = iter([False] * asks)
    bound = lower_bound(instance, stop=lambda: next(answers, True)).ticks
    assert busiest_device(Least(instance)).ticks <= bound <= lower_bound(instance).ticks
    assert next(answers, None) is None


def test_one_slow_microbatch_downstream_does_not_count_for_all() -> None:
    """Stage 0 treats its microbatches alike, but stage 1 sends one of them back later."""
    times = {"t_f_ms": 0, "t_b_ms": [0, [0.25, 0, 0, 0]], "t_w_ms": 0, "t_comm_ms": 0}
    profile = {"stages": 2, **times, "m_b_bytes": 1, "m_w_bytes": 0}
    problem = Problem.parse({"profile": profile, "devices": 2, "microbatches": 4, "memory_limit": 1})
    instance = problem.instance()
    assert instance.clock.value(lower_bound(instance).ticks) == 0.25


@pytest.mark.parametrize(
    ("problem", "bound_ms"),
    [
        (linear(4, 2, 1, 1, 1), 11),
        (linear(4, 1, 1, 1, 1), 9),
        (linear(1, 4, 10, 10, 10), 120),
        (linear(4, 8, 10, 10, [0, 10, 10, 10], comm=1), 273),
        (linear(4, 8, 5, 5, 5, comm=20), 235),
        (linear(64, 512, 10, 10, 10, comm=1), 16053),
    ],
)
def test_bounds_known_by_hand_are_reached(problem: Problem, bound_ms: float) -> None:
    instance = problem.instance()
    assert instance.clock.value(lower_bound(instance).ticks) == bound_ms


@pytest.mark.parametrize(
    ("f", "b", "w", "comm", "m_b", "m_w", "span"),
    [(10, 5, 10, 1, 10, 4, 174), (10, 10, 5, 0, 10, 0, 185)],
)
def test_a_formula_that_fits_the_paper_is_no_bound(
    f: float, b: float, w: float, comm: float, m_b: float, m_w: float, span: float
) -> None:
    # m·T + (p - 1)(F + B - W + 4c) equals every 1p row of Table 5 and is wrong here: a legal span is shorter.
    problem = linear(
        4, 6, f, b, w, comm=comm, m_b_bytes=m_b, m_w_bytes=m_w, memory_limit="1x", optimizer="post_validated"
    )
    instance = problem.instance()
    assert instance.clock.value(lower_bound(instance).ticks) <= span < 6 * (f + b + w) + 3 * (f + b - w + 4 * comm)


def test_bw_that_is_faster_than_b_and_w_lowers_the_bound() -> None:
    split = linear(1, 2, 2, 2, 2).instance()
    fused = linear(1, 2, 2, 2, 2, t_bw_ms=3).instance()
    clock = split.clock
    assert (clock.value(lower_bound(split).ticks), clock.value(lower_bound(fused).ticks)) == (12, 10)


def test_2p_of_the_1_5b_model_is_proven_optimal_by_the_last_device() -> None:
    row = paper_rows()[0]
    instance = paper_problem(row, memory_limit="2x", optimizer="post_validated").instance()
    bound = lower_bound(instance)
    assert instance.clock.value(bound.ticks) == pytest.approx(1152.599, abs=0.001)
    assert re.search(r"device 7 waits 133.861 ms .* works 878.592 ms .* needs 140.146 ms to stage 0", bound.reason)


@pytest.mark.parametrize("optimizer", ["synchronous", "post_validated"])
@pytest.mark.parametrize("placement", ["linear", "v"])
def test_no_limit_is_a_limit_that_holds_everything(placement: str, optimizer: str) -> None:
    times = {"t_f_ms": 3, "t_b_ms": 2, "t_w_ms": 1, "t_comm_ms": 1, "m_b_bytes": 2, "m_w_bytes": 1}
    asked = {"devices": 4, "microbatches": 12, "placement": placement, "optimizer": optimizer}
    profile = {"stages": 8 if placement == "v" else 4, **times}
    bounds = [
        lower_bound(Problem.parse({"profile": profile, **asked, "memory_limit": limit}).instance()).ticks
        for limit in (None, 1e6)
    ]
    assert bounds[0] == bounds[1]


def test_many_microbatches_without_limit_take_no_more_memory() -> None:
    problem = linear(2, 60_000, 3, 2, 1, comm=1)
    assert lower_bound(problem.instance()).ticks >= problem.instance().clock.units(60_000 * 6.0)


def test_memory_that_a_microbatch_holds_until_its_gradient_leaves_counts_with_the_way_home() -> None:
    row = next(row for row in published_rows() if row["id"] == "T8:6.2B:p16:m48:V-Min")
    instance = Problem.parse(row["problem"]).instance()
    bounds = {rule.__name__: instance.clock.value(rule(Least(instance)).ticks) for rule in RULES}
    # What fits into memory at once, with the way to the last device and back: 114 ms more than its waits alone prove.
    assert bounds["residence"] == pytest.approx(4852.491, abs=0.001)
    assert bounds["forced_waits"] == pytest.approx(4738.457, abs=0.001)


def test_memory_that_holds_few_microbatches_is_named_as_the_reason() -> None:
    row = paper_rows()[0]
    bound = lower_bound(paper_problem(row, memory_limit="1x", optimizer="post_validated").instance())
    assert bound.reason == (
        "device 0: it has 1102.68 ms of work; its first gradient comes back after 283.192 ms, "
        "of which its memory lets it fill 148.176 ms with F; its last microbatch takes 310.615 ms to come back, "
        "where its memory leaves it at most 237.906 ms of work"
    )
