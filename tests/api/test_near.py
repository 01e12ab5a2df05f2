"""Plans of nearly equal problems: found, tried and served at once."""

from __future__ import annotations

import copy
import json
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from api.desk import first_plan
from api.near import distance, measures_of, reused, shape_of
from heuristic import construct
from solver import Options, solve
from tests.api.servers import improvable, problem, running
from zbplan.plan import Plan
from zbplan.problem import Problem
from zbplan.validate import validate

TIMES = ("t_f_ms", "t_b_ms", "t_w_ms")
UNEQUAL = {"t_f_ms": [10.0, 14.0, 9.0, 11.0], "t_b_ms": [11.0, 9.0, 13.0, 10.0], "t_w_ms": [5.0, 8.0, 6.0, 4.0]}


def unequal(jitter: float = 1.0, **changes: Any) -> Problem:
    profile = {**problem()["profile"], **{name: [t * jitter for t in times] for name, times in UNEQUAL.items()}}
    return Problem.parse({**problem(), "profile": profile, "memory_limit": None, **changes})


LAYERS = {
    "count": 5,
    "t_f_ms": [2.0, 4.0, 5.0, 4.0, 7.0],
    "t_b_ms": [2.0, 4.0, 5.0, 4.0, 8.0],
    "t_w_ms": [1.0, 2.0, 3.0, 2.0, 4.0],
    "m_b_bytes": 2,
    "m_w_bytes": 1,
}


def layered(jitter: float = 1.0, does: str = "", **changes: Any) -> dict[str, Any]:
    """Return a problem that leaves open how its layers are cut."""
    times = {name: [t * jitter for t in times] for name, times in LAYERS.items() if name.startswith("t_")}
    profile = {**problem(does)["profile"], "t_f_ms": 10, "layers": {**LAYERS, **times}}
    asked = {"profile": profile, "memory_limit": None, "placement": "auto", "devices": 2, "microbatches": 4}
    return {**problem(), **asked, **changes}


def text(plan: Plan) -> bytes:
    return plan.to_json().encode()


def test_shape_is_all_but_what_was_measured() -> None:
    one = problem()
    other = copy.deepcopy(one)
    other["profile"].update(t_f_ms=[9, 9, 9, 9], t_comm_ms=0.7, m_b_bytes=2.5, name="again")
    assert shape_of(Problem.parse(one)) == shape_of(Problem.parse({**other, "memory_limit": 60, "time_limit_s": 3}))


@pytest.mark.parametrize(
    "change",
    [
        {"microbatches": 9},
        {"devices": 2},
        {"placement": [[1], [0], [2], [3]]},
        {"optimizer": "post_validated"},
        {"method": "zb_h1"},
        {"profile": {**problem()["profile"], "splittable": [True, True, True, False]}},
        {"profile": {**problem()["profile"], "engine_mode": "fused"}},
    ],
    ids=["microbatches", "devices", "placement", "optimizer", "method", "splittable", "engine_mode"],
)
def test_other_shapes_are_not_near(change: dict[str, Any]) -> None:
    asked = problem()
    assert shape_of(Problem.parse({**asked, **change})) != shape_of(Problem.parse(asked))


def test_distance_is_the_largest_relative_difference() -> None:
    assert distance(measures_of(unequal()), measures_of(unequal())) == 0
    assert distance(measures_of(unequal()), measures_of(unequal(1.25))) == pytest.approx(0.2, abs=1e-6)
    assert distance(np.zeros(2, np.float32), np.array([0, 3], np.float32)) == 1


def test_measures_of_a_shape_have_one_length() -> None:
    per_microbatch = {**problem(), "placement": "linear"}
    per_microbatch["profile"].update(t_f_ms=[[9] * 8] * 4, t_comm_ms={"forward": [1, 2, 3], "backward": [3, 2, 1]})
    assert measures_of(Problem.parse(per_microbatch)).shape == measures_of(unequal()).shape


def test_reused_plan_has_the_orders_of_the_other_and_its_own_times() -> None:
    near, asked = construct(unequal(1.001)), unequal()
    (plan,) = reused(asked, [text(near)])
    assert [ops.kind for ops in plan.devices] == [ops.kind for ops in near.devices]
    assert validate(plan) == []
    assert plan.key == asked.key
    assert (plan.provenance.method, plan.provenance.warm_start) == ("reused", f"plan {near.plan_id}")
    assert 0 < plan.bound.iteration_ms <= plan.metrics.iteration_ms


def test_plan_that_is_not_legal_here_is_not_reused() -> None:
    roomy, modest = construct(unequal(method="gpipe")), construct(unequal(method="1f1b"))
    (plan,) = reused(unequal(memory_limit="1x"), [text(roomy), text(modest)])
    assert plan.provenance.warm_start == f"plan {modest.plan_id}"


def damage_kind(plan: dict[str, Any]) -> None:
    plan["devices"][0]["kind"][0] = "R"


def damage_stage(plan: dict[str, Any]) -> None:
    plan["devices"][0]["stage"][0] = 10**9


def damage_length(plan: dict[str, Any]) -> None:
    plan["devices"][1]["kind"].pop()


def damage_placement(plan: dict[str, Any]) -> None:
    plan["placement"] = [[0], [1], [2, 3, 4], [5]]


@pytest.mark.parametrize("damage", [damage_kind, damage_stage, damage_length, damage_placement])
def test_damaged_plan_is_not_reused(damage: Any) -> None:
    plan = json.loads(construct(unequal()).to_json())
    damage(plan)
    assert list(reused(unequal(), [json.dumps(plan).encode(), b"{", b""])) == []


def test_plan_of_another_revision_can_be_a_start() -> None:
    old = construct(unequal()).model_copy(update={"key": "0" * 64})
    assert len(list(reused(unequal(), [text(old)]))) == 1


def test_first_plan_is_the_constructive_one_where_that_is_faster() -> None:
    slow, good = text(construct(unequal(method="gpipe"))), text(construct(unequal()))
    assert first_plan(unequal(), [slow]).provenance.method != "reused"
    assert first_plan(unequal(), [slow, good]).provenance.method == "reused"


def test_plan_of_open_layers_is_reused_with_its_cut() -> None:
    near, asked = construct_open(layered(1.001)), Problem.parse(layered())
    (plan,) = reused(asked, [text(near)])
    assert validate(plan) == []
    assert plan.requires.starts == near.requires.starts
    assert [ops.kind for ops in plan.devices] == [ops.kind for ops in near.devices]
    assert (plan.key, plan.provenance.method) == (asked.key, "reused")
    assert plan.metrics.iteration_ms == pytest.approx(near.metrics.iteration_ms, rel=0.01)


def construct_open(asked: dict[str, Any]) -> Plan:
    return solve(Problem.parse(asked), options=Options(parts=()))


def test_open_layers_are_near_to_as_many_open_layers_only() -> None:
    one, closed = layered(), layered(placement="v")
    more = {**one, "profile": {**one["profile"], "layers": {**LAYERS, "count": 6, **dict.fromkeys(TIMES, 4)}}}
    shapes = [shape_of(Problem.parse(asked)) for asked in (one, layered(1.1), closed, more)]
    assert shapes[0] == shapes[1]
    assert len(set(shapes)) == 3
    assert list(reused(Problem.parse(closed), [text(construct_open(one))])) == []
    assert list(reused(Problem.parse(one), [text(construct(Problem.parse(closed)))])) == []


def test_damaged_cut_is_not_reused() -> None:
    plan = json.loads(construct_open(layered()).to_json())
    for starts in ([], [0, 1, 2, 3, 4], [1, 2], [0, 10**6], [0, 0], None):
        plan["requires"]["starts"] = starts
        assert list(reused(Problem.parse(layered()), [json.dumps(plan).encode()])) == []


def test_near_problem_of_open_layers_is_answered_at_once_and_solved_on(tmp_path: Path) -> None:
    with running(tmp_path, near_plans=3) as server:
        first = server.post(layered(), wait_s=30).json()["plan"]
        answer = server.post(layered(1.001, "held"))
        assert answer.status_code == 202
        reused = Plan.parse(answer.json()["plan"])
        assert (reused.provenance.method, reused.provenance.warm_start) == ("reused", f"plan {first['plan_id']}")
        assert reused.requires.starts == first["requires"]["starts"]
        server.let(reused.key, "release")
        assert server.get(f"/v1/plans/{reused.key}", Prefer="wait=30").json()["status"] == "done"


def test_near_problem_is_answered_at_once_and_solved_on(tmp_path: Path) -> None:
    with running(tmp_path, near_plans=3) as server:
        first = server.post(improvable(), wait_s=30).json()["plan"]
        asked = improvable("held")
        answer = server.post(asked)
        assert answer.status_code == 202
        reused = Plan.parse(answer.json()["plan"])
        assert (reused.provenance.method, reused.provenance.warm_start) == ("reused", f"plan {first['plan_id']}")
        assert reused.metrics.iteration_ms <= construct(Problem.parse(asked)).metrics.iteration_ms
        server.let(reused.key, "release")
        assert server.get(f"/v1/plans/{reused.key}", Prefer="wait=30").json()["status"] == "done"
        assert len(server.begun(reused.key)) == 1
