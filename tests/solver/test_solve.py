from __future__ import annotations

import threading
import time
from collections.abc import Callable
from importlib import import_module
from itertools import pairwise
from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings

from heuristic import Built, best_per_placement, construct
from heuristic.gpipe import gpipe
from heuristic.zb_h2 import zb_h2
from solver import LowerBound, Options, solve, stages
from solver.lane import Lane
from solver.request import Request
from solver.search import Search
from tests.heuristic.problems import linear, published_rows
from tests.strategies import problems
from zbplan.errors import InfeasibleError, MethodError
from zbplan.instance import Orders
from zbplan.plan import Plan
from zbplan.problem import Problem
from zbplan.validate import validate

QUICK = Options(parts=())
"""Constructive plans and analytic bounds alone."""


@settings(deadline=None, max_examples=100)
@given(problems(placements=("linear", "v", "interleaved")))
def test_the_answer_is_legal_and_not_below_its_bound(problem: Problem) -> None:
    plan = solve(problem, options=QUICK)
    assert validate(plan) == []
    assert plan.bound.iteration_ms <= plan.metrics.iteration_ms
    assert plan.bound.reason


def test_published_rows_have_a_legal_plan_with_a_bound() -> None:
    for row in published_rows():
        plan = solve(Problem.parse(row["problem"]), options=QUICK)
        assert validate(plan) == [], row["id"]
        assert 0 < plan.bound.iteration_ms <= plan.metrics.iteration_ms, row["id"]


def test_the_answer_is_the_best_constructive_plan() -> None:
    problem = linear(4, 8, 7, 8, 5, comm=0.5)
    assert solve(problem, options=QUICK).plan_id == construct(problem).plan_id


def test_a_named_method_gives_exactly_that() -> None:
    plan = solve(linear(4, 8, 1, 1, 1, method="gpipe"))
    assert plan.provenance.method == "gpipe"
    assert plan.bound.gap > 0.1


def test_infeasible_and_impossible_requests_are_named() -> None:
    with pytest.raises(InfeasibleError):
        solve(linear(2, 2, 1, 1, 1, memory_limit=0))
    with pytest.raises(MethodError):
        solve(linear(4, 8, 1, 1, 1, memory_limit=4, method="gpipe"))


def test_auto_placement_takes_the_better_one_with_its_own_bound() -> None:
    profile = {"stages": 4, "t_f_ms": 1, "t_b_ms": 1, "t_w_ms": 1, "t_comm_ms": 1, "m_b_bytes": 1, "m_w_bytes": 1}
    problem = Problem.parse({"profile": profile, "devices": 2, "microbatches": 4})
    plan = solve(problem, options=QUICK)
    placements = problem.placements
    each = [solve(problem.model_copy(update={"placement": one}), options=QUICK) for one in placements]
    best = min(each, key=lambda other: other.metrics.iteration_ms)
    assert len(each) == 2
    assert (plan.placement, plan.metrics, plan.bound) == (best.placement, best.metrics, best.bound)


def improving(search: Search, lane: Lane) -> None:
    search.offer(lane, zb_h2(lane.instance), "part")


def test_a_part_improves_the_plan_and_is_named_with_its_start() -> None:
    heard: list[tuple[float, float]] = []
    plan = solve(
        linear(4, 8, 1, 1, 1, method="gpipe"),
        options=Options(parts=(improving,)),
        on_incumbent=lambda plan, bound: heard.append((plan.metrics.iteration_ms, bound)),
    )
    assert (plan.provenance.method, plan.provenance.warm_start) == ("part", "gpipe")
    assert [iteration for iteration, _ in heard] == sorted((iteration for iteration, _ in heard), reverse=True)
    assert len(heard) == 2
    assert validate(plan) == []


def test_a_better_bound_is_kept_and_heard_of() -> None:
    heard: list[float] = []

    def bounding(search: Search, lane: Lane) -> None:
        better = LowerBound(lane.bound.ticks + 1, "a longer look")
        search.raise_bound(lane, better, "looker")
        search.raise_bound(lane, LowerBound(0, "worse"), "looker")

    plan = solve(
        linear(4, 8, 1, 1, 1, method="gpipe"),
        options=Options(parts=(bounding,)),
        on_incumbent=lambda _, bound: heard.append(bound),
    )
    assert plan.bound.reason == "a longer look"
    assert heard == sorted(heard)
    assert len(heard) == 2


@pytest.mark.parametrize("lie", ["worse", "incomplete", "deadlock", "memory"])
def test_a_part_that_offers_what_is_no_better_or_not_legal_changes_nothing(lie: str) -> None:
    def lying(search: Search, lane: Lane) -> None:
        instance = lane.instance
        orders = gpipe(instance)
        per_device = [orders.on(device) for device in range(instance.devices)]
        if lie == "incomplete":
            per_device = [ops[:-1] for ops in per_device]
        elif lie == "deadlock":
            per_device = [np.flip(ops) for ops in per_device]
        assert not search.offer(lane, zb_h2(instance) if lie == "memory" else Orders.of(per_device), "liar")

    problem = linear(4, 8, 1, 1, 1, method="1f1b", memory_limit=4)
    assert solve(problem, options=Options(parts=(lying,))).provenance.method == "1f1b"


def near(**changes: Any) -> Problem:
    """One where memory is scarce; others are as near as what is changed."""
    return linear(4, 8, 3.1, 2.9, 1.7, **{"comm": 0.1, "m_b_bytes": 3, "memory_limit": "1x", **changes})


def test_a_warm_start_that_is_better_is_kept_and_named(monkeypatch: pytest.MonkeyPatch) -> None:
    neighbour = solve(near(comm=0.11), options=QUICK)
    # Where the constructive schedules are as bad as this one, whatever they are in truth.
    monkeypatch.setattr(Request, "constructive", near(method="1f1b"))
    heard: list[str] = []
    plan = solve(near(), options=QUICK, warm_start=neighbour, on_incumbent=lambda plan, _: heard.append(plan.plan_id))
    assert plan.provenance.method == neighbour.provenance.method != "1f1b"
    assert plan.provenance.warm_start == f"plan {neighbour.plan_id}"
    assert [(run.part, run.outcome) for run in plan.provenance.parts] == [("warm_start", "kept")]
    assert len(heard) == 2
    assert heard[-1] == plan.plan_id
    assert validate(plan) == []


@pytest.mark.parametrize(
    ("known", "outcome"),
    [
        (near(memory_limit="3x"), "not legal here: "),
        (near(memory_limit="0.5x"), "no better than the constructive plan"),
        (linear(4, 9, 1, 1, 1), "not used: it has 9 microbatches, this problem 8"),
        (linear(3, 8, 1, 1, 1), "not used: it stands on a placement that is not searched here"),
    ],
)
def test_a_warm_start_of_no_use_changes_nothing_and_is_named(known: Problem, outcome: str) -> None:
    plan = solve(near(), options=QUICK, warm_start=solve(known, options=QUICK))
    assert plan.plan_id == solve(near(), options=QUICK).plan_id
    assert plan.provenance.parts[0].outcome.startswith(outcome)


def test_a_named_method_is_not_replaced_by_a_warm_start() -> None:
    plan = solve(near(method="1f1b", memory_limit="1x"), warm_start=solve(near(), options=QUICK))
    assert plan.provenance.method == "1f1b"
    assert plan.provenance.parts[0].outcome == "not used: method 1f1b says what the plan must be"


def test_parts_do_not_run_once_cancelled_late_or_proven() -> None:
    def unwanted(search: Search, lane: Lane) -> None:
        raise AssertionError("ran")

    options = Options(parts=(unwanted,))
    stop = threading.Event()
    stop.set()
    open_problem = linear(4, 8, 1, 1, 1, method="gpipe")
    assert solve(open_problem, options=options, cancel=stop).bound.gap > 0
    assert solve(open_problem, options=options, cancel=lambda: True).bound.gap > 0
    assert solve(open_problem, options=Options(time_limit_s=0, parts=(unwanted,))).bound.gap > 0
    assert solve(linear(1, 2, 1, 1, 1), options=options).bound.proven_optimal


def test_the_limit_counts_from_the_call(monkeypatch: pytest.MonkeyPatch) -> None:
    def slow(problem: Problem, *, stop: Callable[[], bool]) -> list[Built]:
        time.sleep(0.3)
        return best_per_placement(problem, stop=stop)

    def unwanted(search: Search, lane: Lane) -> None:
        raise AssertionError("ran")

    monkeypatch.setattr(stages, "best_per_placement", slow)
    options = Options(time_limit_s=0.2, parts=(unwanted,))
    assert solve(linear(4, 8, 1, 1, 1, method="gpipe"), options=options).bound.gap > 0


def test_loading_the_kernels_takes_no_part_of_the_limit(monkeypatch: pytest.MonkeyPatch) -> None:
    ran: list[Lane] = []
    monkeypatch.setattr(import_module("solver.solve"), "load_kernels", lambda: time.sleep(1.3))
    options = Options(time_limit_s=1, parts=(lambda search, lane: ran.append(lane),))
    solve(linear(4, 8, 1, 1, 1, method="gpipe"), options=options)
    assert ran


@pytest.mark.parametrize("placement", ["linear", "auto"])
def test_a_solve_that_nobody_waits_for_ends_with_the_first_legal_plan(placement: str) -> None:
    profile = {"stages": 8, "t_f_ms": 3, "t_b_ms": 3, "t_w_ms": 2, "t_comm_ms": 1, "m_b_bytes": 2, "m_w_bytes": 1}
    asked = {"devices": 8 if placement == "linear" else 4, "microbatches": 16, "placement": placement}
    problem = Problem.parse({"profile": profile, **asked, "memory_limit": "0.75x"})
    stop = threading.Event()
    stop.set()
    plan = solve(problem, cancel=stop)
    assert validate(plan) == []
    assert 0 < plan.bound.iteration_ms <= solve(problem, options=QUICK).metrics.iteration_ms
    assert plan.metrics.iteration_ms > construct(problem).metrics.iteration_ms
    assert plan.provenance.parts == []


@pytest.mark.parametrize("asks", [0, 3, 10, 40])
def test_a_cancel_at_any_moment_leaves_a_legal_plan_with_a_bound(asks: int) -> None:
    """Cancelled when it has been asked so often, which falls into the schedules, the bounds and the parts."""
    answers = iter([False] * asks)
    plan = solve(linear(4, 12, 18.5, 18.1, 9.3, comm=0.6, memory_limit="0.75x"), cancel=lambda: next(answers, True))
    assert validate(plan) == []
    assert 0 < plan.bound.iteration_ms <= plan.metrics.iteration_ms
    assert next(answers, None) is None


def test_the_heuristic_searches_longer_where_there_is_time() -> None:
    problem = linear(
        4, 8, 18.5, 18.1, 9.3, comm=0.6, m_b_bytes=8, m_w_bytes=3, memory_limit="0.75x", method="heuristic"
    )
    plan = solve(problem.model_copy(update={"time_limit_s": 3}))
    assert [run.part for run in plan.provenance.parts] == ["policies"]
    assert plan.metrics.iteration_ms <= solve(problem, options=QUICK).metrics.iteration_ms


def test_a_tenth_of_a_second_is_enough_for_a_legal_plan_with_a_bound() -> None:
    problem = linear(8, 64, 18.5, 18.1, 9.3, comm=0.6, memory_limit=8)
    plan = solve(problem.model_copy(update={"time_limit_s": 0.1}))
    assert isinstance(plan, Plan)
    assert 0 < plan.bound.iteration_ms <= plan.metrics.iteration_ms


def open_layers(**changes: Any) -> Problem:
    work = [1, 2, 2, 2, 2, 3]
    layers = {"count": 6, "t_f_ms": work, "t_b_ms": work, "t_w_ms": work, "m_b_bytes": 1, "m_w_bytes": 1}
    profile = {"stages": 1, **{name: 1 for name in layers if name != "count"}, "t_comm_ms": 0.5, "layers": layers}
    return Problem.parse({"profile": profile, "devices": 2, "microbatches": 4, "memory_limit": "1x", **changes})


def test_open_layers_are_answered_on_better_and_better_cuts_and_every_incumbent_says_how() -> None:
    asked, seen = open_layers(), list[Plan]()
    plan = solve(asked, options=Options(time_limit_s=2), on_incumbent=lambda plan, _: seen.append(plan))
    assert {each.key for each in (*seen, plan)} == {asked.key}
    assert [validate(each) for each in (*seen, plan)] == [[]] * (len(seen) + 1)
    ranks = [(each.metrics.iteration_ms, -each.bound.iteration_ms) for each in seen]
    assert all(later < sooner for sooner, later in pairwise(ranks))
    assert plan.plan_id == seen[-1].plan_id
    assert plan.bound.iteration_ms > 0
    assert plan.provenance.parts[0].part == "cuts"


def test_open_layers_have_a_first_answer_at_once_whatever_becomes_of_the_solve() -> None:
    """Without parts, without time or when cancelled, no other cut is searched for."""
    asked = open_layers()
    at_once = solve(asked, options=QUICK)
    assert validate(at_once) == []
    assert at_once.provenance.parts == []
    for plan in (solve(asked, options=Options(time_limit_s=0)), solve(asked, cancel=lambda: True)):
        assert validate(plan) == []
        assert [run.outcome for run in plan.provenance.parts] == ["none better, then stopped"]


@pytest.mark.parametrize("starts", [[0, 2], [0, 4]])
def test_a_warm_start_of_open_layers_is_tried_on_its_own_cut(starts: list[int]) -> None:
    asked = open_layers()
    cut = asked.cut(starts, [[0], [1]])
    known = solve(cut).answering(asked, starts)
    plan = solve(asked, options=QUICK, warm_start=known)
    assert plan.metrics.iteration_ms <= known.metrics.iteration_ms
    assert plan.provenance.parts[0].outcome in ("kept", "no better than the constructive plan")


@pytest.mark.parametrize(
    ("devices", "starts", "outcome"),
    [
        (3, [0, 2, 4], "not used: it stands on a placement"),
        (3, None, "not used: it stands on a placement"),
        (2, [0, 9], "not legal here: $.profile.starts: found [0, 9]"),
    ],
)
def test_a_warm_start_on_no_cut_of_the_open_layers_is_of_no_use(
    devices: int, starts: list[int] | None, outcome: str
) -> None:
    asked = open_layers()
    known = solve(linear(devices, 4, 1, 1, 1), options=QUICK)
    known = known.model_copy(update={"requires": known.requires.model_copy(update={"starts": starts})})
    plan = solve(asked, options=QUICK, warm_start=known)
    assert plan.plan_id == solve(asked, options=QUICK).plan_id
    assert plan.provenance.parts[0].outcome.startswith(outcome)


def test_a_bound_that_is_struck_out_does_not_stand_for_open_layers_either() -> None:
    def lying(search: Search, lane: Lane) -> None:
        search.raise_bound(lane, LowerBound(lane.ticks, "a lie"), "liar")
        search.raise_bound(lane, LowerBound(lane.ticks + 1, "a greater one"), "liar")

    asked = open_layers(method="gpipe", memory_limit=None)
    plan = solve(asked, options=Options(parts=(lying,)))
    cut = asked.cut(plan.requires.starts or (), plan.placement)
    assert plan.bound == solve(cut, options=QUICK).bound
    assert plan.bound.gap > 0


def test_a_named_method_has_its_cut_searched_too() -> None:
    plan = solve(open_layers(method="1f1b"), options=Options(time_limit_s=2))
    assert (plan.provenance.method, validate(plan)) == ("1f1b", [])
