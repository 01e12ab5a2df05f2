from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from tests.runtime_client.plans import plan_of, problem_of, random_plan
from tests.strategies import problems, random_orders
from tests.zbplan.traces import as_planned, stretched
from zbplan.errors import InvalidInputError
from zbplan.instance import BW, B, F, Orders, W
from zbplan.joined import Joined
from zbplan.placement import linear
from zbplan.problem import Problem
from zbplan.trace import Trace

PLAN = random_plan(linear(2), 3, seed=1)


@settings(deadline=None, max_examples=40)
@given(problems(placements=("linear", "v", "interleaved"), limited=False), st.integers(0, 2**32))
def test_a_job_that_runs_as_planned_has_the_times_and_waits_of_the_plan(problem: Problem, seed: int) -> None:
    synchronous = problem.model_copy(update={"optimizer": "synchronous"})
    plan = plan_of(synchronous, random_orders(synchronous.instance(), seed))
    joined = Joined.of(plan, as_planned(plan, steps=2, first_step=2))
    close = {"rtol": 0, "atol": 1e-6}
    np.testing.assert_allclose(joined.start, np.broadcast_to(joined.planned_start, joined.start.shape), **close)
    np.testing.assert_allclose(joined.end, np.broadcast_to(joined.planned_end, joined.end.shape), **close)
    np.testing.assert_allclose(joined.took_ms[0], joined.planned_ms, **close)
    # What does not wait for its device waits for its input: nothing else keeps an op back.
    free, ready = joined.free(joined.end), joined.ready(joined.end)
    np.testing.assert_allclose(joined.start, np.maximum(free, ready), **close)
    np.testing.assert_allclose(joined.waited_ms, np.maximum(0, ready - free), **close)


def test_ops_know_where_what_they_receive_was_made() -> None:
    problem = problem_of(linear(2), 1)
    code = problem.instance().code
    plan = plan_of(problem, Orders.of([[code(F, 0, 0), code(BW, 0, 0)], [code(kind, 1, 0) for kind in (F, B, W)]]))
    joined = Joined.of(plan, as_planned(plan))
    assert [joined.name(at) for at in range(5)] == [
        f"{kind}(stage {stage}, microbatch 0)" for kind, stage in (("F", 0), ("BW", 0), ("F", 1), ("B", 1), ("W", 1))
    ]
    assert joined.received_from.tolist() == [-1, 3, 0, -1, -1]
    assert joined.device.tolist() == [0, 0, 1, 1, 1]


def test_the_first_steps_of_a_job_count_only_where_there_are_no_others() -> None:
    slow_first = stretched(PLAN, lambda *op: 5.0 if op[-1] < 2 else 1.0, steps=4)
    joined = Joined.of(PLAN, slow_first)
    assert [step.step for step in joined.steps] == [2, 3]
    assert joined.is_warm
    only = Joined.of(PLAN, as_planned(PLAN, steps=2))
    assert [step.step for step in only.steps] == [0, 1]
    assert not only.is_warm


def test_times_count_from_the_first_op_of_a_step() -> None:
    value = as_planned(PLAN).model_dump()
    for device in value["steps"][0]["devices"]:
        device["start_ms"] = [time + 7 for time in device["start_ms"]]
        device["end_ms"] = [time + 7 for time in device["end_ms"]]
    joined = Joined.of(PLAN, Trace.parse(value))
    np.testing.assert_allclose(joined.start[0], joined.planned_start)


def test_a_trace_of_another_plan_is_refused() -> None:
    other = random_plan(linear(2), 3, seed=2)
    with pytest.raises(InvalidInputError, match=rf"\$.plan_id: found {other.plan_id}; needed {PLAN.plan_id}, that of"):
        Joined.of(PLAN, as_planned(other))


def test_ops_in_another_order_are_named_with_step_and_device() -> None:
    value = as_planned(PLAN, steps=2).model_dump()
    columns = value["steps"][1]["devices"][0]
    ops = [at for at, kind in enumerate(columns["kind"]) if kind in ("F", "B", "W", "BW")]
    columns["kind"][ops[0]] = "W"
    first = PLAN.devices[0]
    needed = f"{first.kind[0]}(stage 0, microbatch {first.microbatch[0]})"
    with pytest.raises(InvalidInputError) as caught:
        Joined.of(PLAN, Trace.parse(value))
    (finding,) = caught.value.findings
    assert (finding.path, finding.needed) == ("$.steps[1].devices[0], op 0", needed)
    for column in ("kind", "stage", "microbatch", "start_ms", "end_ms"):
        del columns[column][ops[-1]]
    columns["kind"][ops[0]] = "F"
    with pytest.raises(InvalidInputError, match=rf"op {len(ops) - 1}: found none; needed"):
        Joined.of(PLAN, Trace.parse(value))


def test_a_trace_of_another_number_of_devices_is_refused() -> None:
    value = as_planned(PLAN).model_dump()
    value["steps"][0]["devices"].pop()
    value["clock_error_ms"].pop()
    with pytest.raises(InvalidInputError, match=r"\$.steps\[0\].devices: found 1 devices; needed 2, as the plan has"):
        Joined.of(PLAN, Trace.parse(value))
