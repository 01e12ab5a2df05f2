from __future__ import annotations

from itertools import pairwise

import pytest
from hypothesis import given, settings

from heuristic import better_cuts, construct, partition
from heuristic.partition.exhaustive import every_cut
from heuristic.partition.judge import Judge
from heuristic.partition.partition import Race
from heuristic.partition.search import Search
from tests.heuristic.partition.layered import layered, open_problems, uneven
from zbplan.errors import InfeasibleError
from zbplan.placement import linear, stages_in
from zbplan.plan import Plan
from zbplan.problem import Problem
from zbplan.validate import validate

FEW = 1_000
"""Ops to schedule for a cut, so that many cuts take seconds."""


def brute_force(problem: Problem) -> float:
    """Return the least iteration over all cuts and placements; infinity if none fits into memory."""
    assert problem.open_layers is not None
    planned = [
        Judge(problem, placement, effort=FEW).best(every_cut(problem.open_layers.count, stages_in(placement)))
        for placement in problem.placements
    ]
    return min((cut.iteration_ms for cut in planned if cut is not None), default=float("inf"))


@settings(deadline=None, max_examples=12)
@given(open_problems(max_layers=7))
def test_every_cut_has_a_legal_plan_or_no_cut_fits_into_memory(problem: Problem) -> None:
    try:
        plan = construct(problem)
    except InfeasibleError:
        assert brute_force(problem) == float("inf")
        return
    assert validate(plan) == []
    assert Plan.parse_json(plan.to_json()) == plan
    assert plan.key == problem.key
    assert plan.requires.starts is not None
    assert plan.requires.stages == len(plan.requires.starts)


@settings(deadline=None, max_examples=6)
@given(open_problems(max_layers=7))
def test_no_cut_is_worse_than_the_usual_ones_and_the_same_problem_has_the_same_cut(problem: Problem) -> None:
    try:
        found = partition(problem, effort=FEW)
    except InfeasibleError:
        return
    for candidate in found.candidates:
        for usual in (candidate.even, candidate.shorter):
            if usual is not None:
                assert candidate.best is not None
                assert candidate.best.iteration_ms <= usual.iteration_ms
    again = partition(Problem.parse(problem.canonical), effort=FEW).best
    assert (again.placement, again.starts) == (found.best.placement, found.best.starts)


@settings(deadline=None, max_examples=6)
@given(open_problems(max_layers=5))
def test_an_exact_search_agrees_with_brute_force(problem: Problem) -> None:
    best_ms = brute_force(problem)
    if best_ms == float("inf"):
        with pytest.raises(InfeasibleError):
            partition(problem, effort=FEW, exact=True)
        return
    assert partition(problem, effort=FEW, exact=True).best.iteration_ms <= best_ms


def test_the_uneven_model_comes_near_its_work_spread_over_all_devices() -> None:
    """As it stands its last stage takes 3623.7 ms; with room for 2p microbatches the ramps need no time at all."""
    problem = Problem.parse(uneven(12))
    assert problem.open_layers is not None
    work_ms = sum(sum(problem.open_layers.per_layer(name)) for name in ("t_f_ms", "t_b_ms", "t_w_ms"))
    best = partition(problem, placements=[linear(8)]).best
    assert validate(best.built.plan.answering(problem, best.starts)) == []
    assert best.iteration_ms <= 1.03 * work_ms * problem.microbatches / problem.devices


def test_embedding_and_head_weigh_what_they_weigh() -> None:
    """The head works as much as two blocks, so the last stage gets two blocks fewer."""
    work = [0, *[2] * 14, 4]
    problem = layered({"t_f_ms": work, "t_b_ms": work, "t_w_ms": work}, devices=4, microbatches=16)
    best = partition(problem, placements=[linear(4)]).best
    assert [later - start for start, later in pairwise([*best.starts, 16])] == [5, 4, 4, 3]
    assert best.problem.profile.t_f_ms == [8, 8, 8, 8]


def test_the_usual_cuts_are_searched_as_long_as_the_best_one() -> None:
    times = {"t_f_ms": [0.5, *[7.4] * 14, 9], "t_b_ms": [0.5, *[7.3] * 14, 8.5], "t_w_ms": [1, *[4.9] * 14, 7.5]}
    problem = layered(times, devices=4, microbatches=12, comm=0.5, memory_limit="1.5x")
    search = Search(problem, problem.placements[2], effort=FEW)
    search.begin()
    search.widen()
    tried, best_ms = search.shorter, search.best_ms
    search.refine(best_ms, fair=True)
    assert search.shorter.iteration_ms == search.judge.refined(tried).iteration_ms < best_ms < tried.iteration_ms
    assert search.best.iteration_ms <= min(search.even.iteration_ms, search.shorter.iteration_ms)


TRANSFORMER = {"t_f_ms": [0.5, *[7.4] * 14, 9], "t_b_ms": [0.5, *[7.3] * 14, 8.5], "t_w_ms": [1, *[4.9] * 14, 7.5]}


def test_the_first_cut_is_there_after_one_plan_per_placement_whenever_the_search_is_to_end() -> None:
    problem = layered(TRANSFORMER, devices=4, microbatches=8, memory_limit="1.5x")
    race = Race(problem, problem.placements, effort=FEW)
    next(race.steps())
    assert [(search.best is None, search.even) for search in race.searches] == [(False, None)] * 5
    (first,) = better_cuts(problem, effort=FEW, stop=lambda: True)
    assert (first.placement, first.starts) == (race.best.placement, race.best.starts)


def test_later_cuts_are_better_and_the_last_one_is_as_good_as_a_fair_search_finds() -> None:
    problem = layered(TRANSFORMER, devices=4, microbatches=8, memory_limit="1.5x")
    found = [cut.iteration_ms for cut in better_cuts(problem, effort=FEW)]
    assert len(found) > 1
    assert all(later < sooner for sooner, later in pairwise(found))
    assert found[-1] == partition(problem, effort=FEW).best.iteration_ms


def test_no_cut_is_planned_once_the_search_is_to_end() -> None:
    """It is asked before every cut, so that what is left to do once it says so is a part of one plan."""
    problem = layered(TRANSFORMER, devices=4, microbatches=8)
    asked = iter([False, False])
    judge = Judge(problem, linear(4), effort=FEW, stop=lambda: next(asked, True))
    assert judge.plan([0, 4, 8, 12]) is not None
    assert judge.plan([0, 5, 8, 12]) is None
    assert judge.plan([0, 4, 8, 12]) is not None


def test_who_is_in_a_hurry_gets_the_first_cut_that_has_a_plan() -> None:
    problem = layered({"t_f_ms": [1, 2, 2, 2, 2, 3], "t_b_ms": 1, "t_w_ms": 1}, devices=2, microbatches=4)
    race = Race(problem, problem.placements, hurry=lambda: True)
    next(race.steps())
    assert len(race.searches) > 1
    assert [search.best is not None for search in race.searches] == [True] + [False] * (len(race.searches) - 1)
    (cut,) = better_cuts(problem, hurry=lambda: True)
    assert cut.starts == race.best.starts
