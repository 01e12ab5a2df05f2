from __future__ import annotations

import json

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from tests.runtime_client.plans import plan_of, problem_of, random_plan, zb_h1
from tests.strategies import problems, random_orders
from tests.zbplan.traces import as_planned, stretched
from zbplan.joined import Joined
from zbplan.placement import linear, v_shape
from zbplan.problem import Problem
from zbplan.trace import Trace
from zbplan.trace_report import report, transfer_durations

PLANS = {"linear": zb_h1(3, 6), "v": random_plan(v_shape(2), 4, seed=3)}


@settings(deadline=None, max_examples=40)
@given(problems(placements=("linear", "v", "interleaved"), limited=False), st.integers(0, 2**32))
def test_a_job_that_runs_as_planned_has_the_figures_of_the_plan(problem: Problem, seed: int) -> None:
    synchronous = problem.model_copy(update={"optimizer": "synchronous"})
    plan = plan_of(synchronous, random_orders(synchronous.instance(), seed))
    found = report(plan, as_planned(plan, steps=3, first_step=2))
    assert found.iteration_ms.measured == pytest.approx(plan.metrics.iteration_ms, abs=1e-6)
    assert found.bubble_rate.measured == pytest.approx(plan.metrics.bubble_rate, abs=1e-6)
    assert found.first_divergence is None
    for device in found.devices:
        assert device.ops_ms.measured == pytest.approx(device.ops_ms.planned, abs=1e-6)
        assert device.waiting_ms.measured == pytest.approx(device.waiting_ms.planned, abs=1e-6)
        assert device.host_ms == pytest.approx(0, abs=1e-6)
        whole_ms = device.ops_ms.measured + device.waiting_ms.measured + device.sending_ms + device.host_ms
        assert device.step_ms == pytest.approx(whole_ms)
    for op in found.ops:
        for figure in (op.start_ms, op.took_ms, op.dependency_wait_ms, op.resource_wait_ms):
            assert figure.measured == pytest.approx(figure.planned, abs=1e-6)


@pytest.mark.parametrize("name", PLANS)
def test_the_steady_state_of_a_job_that_runs_as_planned_is_that_of_the_plan(name: str) -> None:
    found = report(PLANS[name], as_planned(PLANS[name])).steady_bubble_rate
    assert found.planned is not None
    assert found.measured == pytest.approx(found.planned)


def test_the_steady_state_lies_between_warm_up_and_cool_down() -> None:
    # Equal stages, B as long as F, no W: 1F1B has bubbles only at its ends, 2 (p − 1) of the m + p − 1 rounds.
    problem = problem_of(linear(3), 9, t_f_ms=2, t_b_ms=2, t_w_ms=0, t_bw_ms=2, t_comm_ms=0)
    from heuristic import construct

    plan = construct(problem.model_copy(update={"method": "1f1b"}))
    found = report(plan, as_planned(plan))
    assert found.bubble_rate.planned == pytest.approx(1 - 18 / 22)
    assert found.steady_bubble_rate.planned == pytest.approx(0)
    assert found.steady_bubble_rate.measured == pytest.approx(0)


def test_a_plan_without_a_steady_state_has_no_bubble_in_it() -> None:
    plan = random_plan(linear(3), 1, seed=0)
    found = report(plan, as_planned(plan)).steady_bubble_rate
    assert (found.planned, found.measured) == (None, None)


def test_a_kind_of_op_that_takes_longer_is_told_with_its_stage_and_device() -> None:
    plan = PLANS["v"]
    found = report(plan, stretched(plan, lambda kind, stage, *_: 1.5 if (kind, stage) == ("F", 2) else 1.0))
    ratios = {(kind.kind, kind.stage): kind.took_ms.ratio for kind in found.kinds}
    assert ratios.pop(("F", 2)) == pytest.approx(1.5)
    assert list(ratios.values()) == pytest.approx([1.0] * len(ratios))
    assert {(kind.stage, kind.device) for kind in found.kinds} == {(0, 0), (1, 1), (2, 1), (3, 0)}


def test_the_median_over_steps_counts_and_not_one_outlier() -> None:
    plan = PLANS["linear"]
    found = report(plan, stretched(plan, lambda *op: 9.0 if op[-1] == 4 else 1.0, steps=3, first_step=2))
    assert found.iteration_ms.measured == pytest.approx(plan.metrics.iteration_ms)
    assert found.steps == 3


def test_the_first_op_that_leaves_the_plan_is_named_with_its_reason() -> None:
    plan = PLANS["linear"]
    slow = stretched(plan, lambda kind, stage, microbatch, _: 2.0 if (kind, stage, microbatch) == ("F", 1, 2) else 1.0)
    found = report(plan, slow).first_divergence
    assert found is not None
    assert (found.op, found.device) == ("F(stage 1, microbatch 2)", 1)
    assert found.why == "it ran 3 ms longer"
    assert found.end_ms.measured - found.end_ms.planned == pytest.approx(3)


def test_an_op_that_leaves_the_plan_because_its_input_is_late_says_so() -> None:
    plan = PLANS["linear"]
    found = report(plan, as_planned(plan, lag_factor=20.0)).first_divergence
    assert found is not None
    assert found.op == "F(stage 1, microbatch 0)"
    assert found.why == "it started 9.5 ms later, 9.5 ms of which it waited longer for what it receives"


def test_an_op_that_leaves_the_plan_because_the_host_is_late_says_so() -> None:
    plan = PLANS["linear"]
    found = report(plan, as_planned(plan, overhead_ms=2.0)).first_divergence
    assert found is not None
    assert "its device was not free or the host was late" in found.why


def test_what_passes_between_ops_and_between_steps_is_told() -> None:
    plan = PLANS["linear"]
    found = report(plan, stretched(plan, lambda *_: 1.0, steps=4, gap_ms=30.0, overhead_ms=0.5, tokens=1000))
    step_ms = max(device.step_ms for device in found.devices)
    assert found.period_ms == pytest.approx(step_ms + 30)
    assert found.outside_step == pytest.approx(30 / (step_ms + 30))
    assert found.tokens_per_s == pytest.approx(1e6 / (step_ms + 30))
    ops = len(plan.devices[0].kind)
    assert [device.host_ms for device in found.devices] == pytest.approx([0.5 * ops] * 3)
    actions = [step_ms - device.host_ms for device in found.devices]
    assert found.outside_ops <= 1 - min(actions) / (step_ms + 30)
    assert found.outside_ops > found.outside_step


def test_steps_that_do_not_follow_each_other_have_no_period() -> None:
    value = as_planned(PLANS["linear"], steps=2, first_step=2).model_dump()
    value["steps"][1]["step"] = 7
    found = report(PLANS["linear"], Trace.parse(value))
    assert (found.period_ms, found.outside_step) == (None, None)


def test_peak_memory_stands_beside_what_is_predicted() -> None:
    plan = PLANS["linear"]
    found = report(plan, as_planned(plan, steps=2, peak_bytes=8.0))
    assert [device.peak_bytes.measured for device in found.devices] == [8.0] * 3
    assert [device.peak_bytes.planned for device in found.devices] == plan.metrics.peak_bytes
    assert report(plan, as_planned(plan)).devices[0].peak_bytes.measured is None


def test_transfers_are_told_as_far_as_somebody_stood_waiting() -> None:
    plan = PLANS["linear"]
    joined = Joined.of(plan, as_planned(plan, steps=2, first_step=2, lag_factor=3.0))
    found = transfer_durations(joined)
    assert set(found) == {(0, 1), (1, 1), (1, -1), (2, -1)}
    for duration in found.values():
        if duration.samples:
            assert duration.median_ms == pytest.approx(1.5)
    assert found[0, 1].samples >= 2
    stood = [
        (joined.wait_start <= joined.end[:, np.maximum(joined.received_from, 0)])[:, joined.received_from >= 0].sum()
    ]
    assert sum(duration.samples for duration in found.values()) == stood[0]
    both = {
        (transfer.from_stage, transfer.to_stage): transfer.took_ms
        for transfer in report(plan, as_planned(plan, lag_factor=3.0)).transfers
    }
    assert both[0, 1].planned == 0.5
    assert both[0, 1].measured == pytest.approx(1.5)


def test_waits_for_input_are_told_from_waits_for_the_device() -> None:
    # Device 1 has nothing to do until F of stage 0 arrives; then one F after the other waits for the device.
    problem = problem_of(linear(2), 3, t_f_ms=[1, 4], t_comm_ms=1)
    from heuristic import construct

    plan = construct(problem.model_copy(update={"method": "gpipe"}))
    late = stretched(plan, lambda kind, stage, *_: 3.0 if (kind, stage) == ("F", 0) else 1.0)
    ops = {op.op: op for op in report(plan, late).ops}
    first, last = (ops[f"F(stage 1, microbatch {at})"] for at in (0, 2))
    assert (first.dependency_wait_ms.planned, first.dependency_wait_ms.measured) == (pytest.approx(2), pytest.approx(4))
    assert (last.resource_wait_ms.planned, last.resource_wait_ms.measured) == (pytest.approx(6), pytest.approx(2))
    kinds = {(kind.kind, kind.stage): kind for kind in report(plan, late).kinds}
    assert kinds["F", 1].start_error_ms == pytest.approx(2)
    assert kinds["F", 1].dependency_wait_ms.measured == pytest.approx(4 / 3)


def test_a_report_is_one_json_value() -> None:
    found = report(PLANS["v"], as_planned(PLANS["v"]))
    value = json.loads(json.dumps(found.as_json(), allow_nan=False))
    assert value["iteration_ms"] == {"planned": found.iteration_ms.planned, "measured": found.iteration_ms.measured}
    assert len(value["ops"]) == sum(len(ops.kind) for ops in PLANS["v"].devices)
