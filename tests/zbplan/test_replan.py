from __future__ import annotations

from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from tests.runtime_client.plans import one_f_one_b, open_plan, plan_of, problem_of, random_plan, zb_h1
from tests.strategies import problems, random_orders
from tests.zbplan.traces import as_planned, stretched
from zbplan.errors import InvalidInputError
from zbplan.placement import linear, v_shape
from zbplan.plan import Plan
from zbplan.problem import Problem
from zbplan.profile import Profile
from zbplan.replan import measured_profile
from zbplan.trace import Trace

STEADY = {"steps": 5, "first_step": 2}
FACTORS = {"F": 1.5, "B": 2.0, "W": 0.5, "BW": 3.0}


def longer(plan: Plan, **options: Any) -> Trace:
    return stretched(plan, lambda kind, *_: FACTORS[kind], **STEADY | options)


def times(profile: Profile, name: str) -> list[Any]:
    return profile.per_stage(name)


def scaled(values: list[float], factor: float) -> Any:
    return [pytest.approx(factor * value) for value in values]


@pytest.mark.parametrize("plan", [zb_h1(3, 4), random_plan(v_shape(2), 3, seed=5, t_bw_ms=9.0)])
def test_times_are_those_of_the_trace_and_all_else_is_the_plans(plan: Plan) -> None:
    base, found = plan.asked.profile, measured_profile(plan, longer(plan))
    for name, kind in (("t_f_ms", "F"), ("t_b_ms", "B"), ("t_w_ms", "W")):
        assert times(found, name) == scaled(times(base, name), FACTORS[kind])
    for name in ("m_b_bytes", "m_w_bytes", "m_static_bytes", "splittable", "stages", "engine_mode", "name"):
        assert getattr(found, name) == getattr(base, name)
    assert found.forced == []
    assert found.environment["steps"] == 5
    stages, microbatches = base.stages, plan.requires.microbatches
    assert found.statistics.t_f_ms.count == [5 * microbatches] * stages
    assert found.statistics.t_f_ms.spread_ms == [pytest.approx(0, abs=1e-6)] * stages


def test_where_the_plan_cut_the_layers_its_own_cut_is_measured() -> None:
    plan = open_plan()
    base, found = plan.planned.profile, measured_profile(plan, longer(plan))
    assert (found.stages, found.layers) == (4, None)
    assert times(found, "t_f_ms") == scaled(times(base, "t_f_ms"), FACTORS["F"])
    for name in ("m_b_bytes", "m_w_bytes", "boundary_bytes"):
        assert times(found, name) == times(base, name)


def test_what_it_says_is_a_problem_that_can_be_planned() -> None:
    plan = zb_h1(3, 4)
    profile = measured_profile(plan, longer(plan))
    again = Problem.parse({**plan.asked.model_dump(), "profile": Profile.parse_json(profile.to_json()).model_dump()})
    replanned = plan_of(again, plan.orders())
    assert replanned.key != plan.key
    assert replanned.metrics.iteration_ms > plan.metrics.iteration_ms


def test_bw_that_was_not_run_follows_from_b_and_w() -> None:
    plan = zb_h1(2, 3)
    found = measured_profile(plan, longer(plan))
    assert found.t_bw_ms is None
    assert found.statistics.t_bw_ms.count == [0, 0]
    mixed = plan_of(problem_of(linear(2), 4, t_bw_ms=20.0, splittable=[True, False]), one_f_one_b(2, 4).orders())
    assert times(measured_profile(mixed, longer(mixed)), "t_bw_ms") == scaled([20.0, 20.0], 3.0)


def test_a_stage_that_only_ran_bw_has_its_b_and_w_estimated_unless_it_cannot_be_split() -> None:
    plan = one_f_one_b(2, 4)
    base, found = plan.asked.profile, measured_profile(plan, longer(plan))
    for name in ("t_b_ms", "t_w_ms"):
        assert times(found, name) == scaled(times(base, name), 3.0)
    assert found.estimated == ["t_b_ms", "t_w_ms"]
    assert found.statistics.t_b_ms.count == [0, 0]
    whole = plan_of(problem_of(linear(2), 4, splittable=False), plan.orders())
    assert measured_profile(whole, longer(whole)).estimated == []


def test_where_the_plan_has_a_number_per_microbatch_so_has_the_trace() -> None:
    forward = [[1.0, 2.0, 4.0], 3.0]
    problem = problem_of(linear(2), 3, t_f_ms=forward)
    plan = plan_of(problem, random_orders(problem.instance(), 4))
    found = times(measured_profile(plan, longer(plan)), "t_f_ms")
    assert found == [[pytest.approx(1.5 * ms) for ms in forward[0]], pytest.approx(4.5)]


def test_t_comm_is_measured_where_somebody_stood_waiting() -> None:
    plan = zb_h1(3, 4)
    found = measured_profile(plan, stretched(plan, lambda *_: 1.0, lag_factor=4.0, **STEADY))
    counts = found.statistics.t_comm_ms
    for way in ("forward", "backward"):
        expected = [2.0 if count else 0.5 for count in getattr(counts, way).count]
        assert getattr(found.t_comm_ms, way) == [pytest.approx(ms) for ms in expected]
    assert counts.forward.count[0] > 0
    assert found.environment["placement"] == plan.placement


def test_without_a_waiting_receiver_t_comm_is_the_plans() -> None:
    problem = problem_of([[0, 1]], 2)
    plan = plan_of(problem, random_orders(problem.instance(), 1))
    found = measured_profile(plan, longer(plan))
    assert found.t_comm_ms == 0.5
    assert found.statistics.t_comm_ms is None


@pytest.mark.parametrize(("first", "steps", "found"), [(0, 2, 0), (0, 4, 2), (5, 2, 2)])
def test_too_few_steady_steps_are_refused(first: int, steps: int, found: int) -> None:
    plan = zb_h1(2, 3)
    with pytest.raises(InvalidInputError, match=rf"\$.steps: found {found} steady steps; needed 3 or more behind the"):
        measured_profile(plan, as_planned(plan, steps=steps, first_step=first))


def test_a_trace_whose_last_w_ran_for_those_before_it_is_refused() -> None:
    plan = zb_h1(2, 3)
    overlapped = longer(plan).model_copy(update={"environment": {"overlap_grad_reduce": True}})
    with pytest.raises(InvalidInputError, match=r"\$\.environment\.overlap_grad_reduce: found true: .*=False"):
        measured_profile(plan, overlapped, force=True)
    told = longer(plan).model_copy(update={"environment": {"overlap_grad_reduce": False}})
    assert measured_profile(plan, told) == measured_profile(plan, longer(plan))


def test_scattered_samples_are_refused_or_kept_and_marked() -> None:
    plan = zb_h1(2, 3)
    jitter = stretched(plan, lambda kind, *rest: 1 + rest[-1] % 3 if kind == "B" else 1.0, **STEADY)
    with pytest.raises(InvalidInputError) as caught:
        measured_profile(plan, jitter)
    assert {finding.path for finding in caught.value.findings} >= {"t_b_ms of stage 0", "t_b_ms of stage 1"}
    assert "10% or less: trace more steps of a job that runs alone, or keep it with --force" in str(caught.value)
    kept = measured_profile(plan, jitter, force=True)
    assert any(sentence.startswith("t_b_ms of stage 0: found a spread of") for sentence in kept.forced)


@settings(deadline=None, max_examples=40)
@given(problems(placements=("linear", "v", "interleaved"), limited=False), st.integers(0, 2**32))
def test_a_job_that_ran_as_planned_gives_the_same_plan(problem: Problem, seed: int) -> None:
    synchronous = problem.model_copy(update={"optimizer": "synchronous"})
    plan = plan_of(synchronous, random_orders(synchronous.instance(), seed))
    profile = measured_profile(plan, as_planned(plan, steps=3, first_step=2))
    assert profile.forced == []
    again = Problem.parse({**plan.asked.model_dump(), "profile": profile.model_dump()})
    found = Plan.build(again, plan.placement, plan.orders(), method="heuristic")
    assert found.metrics.iteration_ms == pytest.approx(plan.metrics.iteration_ms, abs=1e-3)
    assert found.metrics.peak_bytes == plan.metrics.peak_bytes
