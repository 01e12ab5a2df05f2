from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from heuristic.list_schedule import NEVER, Policy, list_schedule, task_of
from tests.heuristic.problems import linear
from tests.strategies import problems
from zbplan.instance import Instance
from zbplan.plan import Plan
from zbplan.problem import Problem
from zbplan.validate import validate

KEYS = st.integers(-(10**6), 10**6)


@st.composite
def policies(draw: st.DrawFn, instance: Instance) -> Policy:
    """Any policy at all, sensible or not."""
    stages, microbatches = instance.stages, instance.microbatches
    rows = draw(st.sampled_from((2, 3)))
    cells = rows * stages * microbatches
    keys = st.lists(KEYS, min_size=cells, max_size=cells)
    caps = st.lists(st.integers(1, microbatches), min_size=2 * stages, max_size=2 * stages)
    backlog = st.lists(st.integers(0, 5), min_size=instance.devices, max_size=instance.devices)
    gaps = st.lists(st.one_of(st.floats(0, 4), st.just(np.inf)), min_size=instance.devices, max_size=instance.devices)
    split = st.lists(st.booleans(), min_size=stages, max_size=stages)
    return Policy(
        launch=np.array(draw(st.permutations(range(microbatches))), dtype=np.int64),
        key=np.array(draw(keys), dtype=np.int64).reshape(rows, stages, microbatches),
        slack=np.array([draw(st.one_of(st.just(NEVER), st.integers(0, 10**6))) for _ in range(3)], dtype=np.int64),
        patience=draw(st.integers(0, 10**7)),
        caps=np.array(draw(caps), dtype=np.int64).reshape(stages, 2),
        weight_gap=np.array(draw(gaps)),
        backlog=np.array(draw(backlog), dtype=np.int64),
        split=np.array(draw(split), dtype=np.bool_),
    )


@settings(deadline=None, max_examples=300)
@given(st.data())
def test_any_policy_gives_a_legal_plan_under_any_feasible_limit(data: st.DataObject) -> None:
    problem = data.draw(problems(placements=("linear", "v", "interleaved")))
    instance = problem.instance()
    orders = list_schedule(task_of(instance), data.draw(policies(instance)))
    plan = Plan.build(problem, problem.placements[0], orders, method="planner")
    assert validate(plan) == []


@settings(deadline=None, max_examples=60)
@given(problems(placements=("linear", "v", "interleaved"), limited=False), st.data())
def test_the_smallest_room_is_enough(problem: Problem, data: st.DataObject) -> None:
    instance = problem.instance()
    least = [instance.memory.value(units) for units in (instance.smallest_room + instance.static).tolist()]
    tight = problem.model_copy(update={"memory_limit": least})
    orders = list_schedule(task_of(tight.instance()), data.draw(policies(instance)))
    assert validate(Plan.build(tight, tight.placements[0], orders, method="planner")) == []


def test_less_than_the_smallest_room_is_resplit() -> None:
    instance = linear(2, 2, 1, 1, 1, memory_limit=0.5).instance()
    with pytest.raises(ValueError, match="less room than the smallest"):
        task_of(instance)
