"""Problems that leave the cut of a model's layers open, and plans that answer them."""

from __future__ import annotations

import json
from typing import Any

import pytest

from heuristic import construct
from zbplan.errors import InvalidInputError
from zbplan.layers import shorter_ends
from zbplan.plan import Plan
from zbplan.problem import Problem
from zbplan.validate import validate

LAYERS = {
    "count": 6,
    "t_f_ms": [1, 2, 2, 2, 2, 3],
    "t_b_ms": [1, 2, 2, 2, 2, 3],
    "t_w_ms": [1, 1, 1, 1, 1, 2],
    "m_b_bytes": [2, 4, 4, 4, 4, 3],
    "m_w_bytes": [1, 2, 2, 2, 2, 1],
    "m_static_bytes": [50, 10, 10, 10, 10, 70],
    "m_peak_bytes": [0, 1, 1, 1, 1, 5],
    "boundary_bytes": [1, 1, 1, 1, 1, 0],
}
STAGES = {"stages": 2, "t_f_ms": 6, "t_b_ms": 6, "t_w_ms": 3, "t_comm_ms": 0.5, "m_b_bytes": 9, "m_w_bytes": 4}
LINEAR = [[0], [1]]


def problem(layers: dict[str, Any] | None = None, stages: dict[str, Any] | None = None, **changes: Any) -> Problem:
    profile = {**STAGES, **(stages or {}), "layers": {**LAYERS, **(layers or {})}}
    return Problem.parse({"profile": profile, "devices": 2, "microbatches": 4, "placement": "auto", **changes})


def test_canonical_form_keeps_the_layers_and_has_the_same_key() -> None:
    for limit in (None, 200, [150, 200], "1x"):
        asked = problem(memory_limit=limit)
        again = Problem.parse(json.loads(json.dumps(asked.canonical)))
        assert (again.key, again.canonical) == (asked.key, asked.canonical)
        assert again.open_layers is not None


@pytest.mark.parametrize(
    "same",
    [
        problem(stages={"t_f_ms": 99}),
        problem(stages={"stages": 6, "t_comm_ms": 0.5}),
        problem({"statistics": None, "splittable": [True] * 6, "t_bw_ms": [2, 3, 3, 3, 3, 5]}),
        problem(time_limit_s=99),
    ],
)
def test_stages_are_no_part_of_the_key_where_layers_are_cut_anew(same: Problem) -> None:
    assert same.key == problem().key


@pytest.mark.parametrize(
    ("written", "shortest"), [("1.0x", "1x"), ("01.50x", "1.5x"), ("10x", "10x"), ("0.250x", "0.25x"), ("0.0x", "0x")]
)
def test_equal_multiples_have_one_key(written: str, shortest: str) -> None:
    asked, same = problem(memory_limit=written), problem(memory_limit=shortest)
    assert asked.key == same.key
    assert asked.canonical["memory_limit"] == same.canonical["memory_limit"] == shortest


@pytest.mark.parametrize(
    "other",
    [
        problem({"t_f_ms": [1, 2, 2, 2, 2, 4]}),
        problem({"m_static_bytes": 0}),
        problem({"boundary_bytes": 0}),
        problem({"splittable": False}),
        problem(stages={"t_comm_ms": 0.6}),
        problem(placement="linear"),
    ],
)
def test_whatever_changes_the_cut_changes_the_key(other: Problem) -> None:
    assert other.key != problem().key


def test_layers_stay_out_of_the_key_where_stages_are_given() -> None:
    assert problem(placement="linear").key == problem({"t_f_ms": 7}, placement="linear").key
    assert problem(placement="linear").open_layers is None


def test_the_placements_are_those_that_the_layers_are_enough_for() -> None:
    v, interleaved_2, interleaved_3 = [[0, 3], [1, 2]], [[0, 2], [1, 3]], [[0, 2, 4], [1, 3, 5]]
    assert problem().placements == [LINEAR, v, interleaved_2, interleaved_3]
    assert problem().most_stages == 6
    assert problem(devices=1).placements == [[[0]]]


def test_a_cut_is_a_problem_of_its_own() -> None:
    cut = problem(memory_limit=200).cut([0, 4], LINEAR)
    assert (cut.profile.t_f_ms, cut.profile.m_static_bytes) == ([7, 5], [80, 80])
    assert (cut.placements, cut.limits(LINEAR)) == ([LINEAR], [200, 200])
    assert Problem.parse(cut.canonical).key == cut.key


def test_a_multiple_leaves_every_cut_the_activations_of_the_even_one() -> None:
    """Even: 2 + 4 + 4 - 2 = 8 and 4 + 4 + 3 - 2 = 9 bytes, so 1x is 18 beside static memory and peaks."""
    asked = problem(memory_limit="1x")
    assert asked.cut([0, 3], LINEAR).limits(LINEAR) == [18 + 70 + 1, 18 + 90 + 5]
    assert asked.cut([0, 5], LINEAR).limits(LINEAR) == [18 + 90 + 1, 18 + 70 + 5]


@pytest.mark.parametrize(
    ("asked", "path", "needed"),
    [
        (lambda: problem(devices=7), "$.profile.layers.count", "one per device or more"),
        (
            lambda: problem(stages={"t_comm_ms": {"forward": [1], "backward": [2]}}),
            "$.profile.t_comm_ms",
            "one number, which holds for any cut",
        ),
        (lambda: problem({"t_f_ms": [1e-7, 1, 1, 1, 1, 1]}), "$.profile.layers.t_f_ms[0]", "a multiple of the tick"),
        (lambda: problem(microbatches=1 << 16, devices=6).cut([0], [[0]]), "$.placement", "6 lists, one per device"),
        (lambda: problem().cut([0, 0], LINEAR), "$.profile.starts", "0, then larger layers below 6"),
        (lambda: problem().instance(), "$.placement", "cut the layers"),
    ],
)
def test_what_cannot_be_cut_is_refused_by_path(asked: Any, path: str, needed: str) -> None:
    with pytest.raises(InvalidInputError) as caught:
        asked()
    finding = next(finding for finding in caught.value.findings if finding.path == path)
    assert needed in finding.needed


def test_a_plan_says_which_layer_each_stage_begins_with() -> None:
    asked = problem(memory_limit="1x")
    plan = construct(asked, effort=2)
    assert validate(plan) == []
    assert (plan.key, plan.problem) == (asked.key, asked.canonical)
    assert plan.requires.starts is not None
    assert plan.planned.profile.canonical() == asked.profile.cut(plan.requires.starts).canonical()
    assert Plan.parse_json(plan.to_json()) == plan


def test_a_plan_is_legal_where_rounding_tells_a_sum_of_sums_from_a_sum_over_layers() -> None:
    times = {"count": 5, "t_f_ms": 1, "t_b_ms": 1.0000000000000002, "t_w_ms": 1.0}
    layers = {**LAYERS, **times, **dict.fromkeys(("m_b_bytes", "m_w_bytes"), 1)}
    ones = dict.fromkeys(("m_static_bytes", "m_peak_bytes", "boundary_bytes"), 0)
    asked = problem({**layers, **ones}, devices=1)
    assert Problem.parse(asked.canonical).canonical == asked.canonical
    assert validate(construct(asked, effort=2)) == []


@pytest.mark.parametrize("starts", [None, [], [0, 9], [1, 2], [0]])
def test_a_plan_whose_stages_are_no_cut_is_not_legal(starts: list[int] | None) -> None:
    plan = construct(problem(), effort=2)
    broken = plan.model_copy(update={"requires": plan.requires.model_copy(update={"starts": starts})})
    assert "cut" in {violation.code for violation in validate(broken)}


def test_a_plan_moved_to_another_cut_is_not_legal() -> None:
    plan = construct(problem(), effort=2)
    assert plan.requires.starts is not None
    other = [0, *(start + 1 for start in plan.requires.starts[1:-1]), 5]
    assert other != plan.requires.starts
    moved = plan.model_copy(update={"requires": plan.requires.model_copy(update={"starts": other})})
    assert validate(moved) != []


def test_a_cut_is_no_part_of_a_plan_whose_stages_were_given() -> None:
    plan = construct(problem(placement="linear"), effort=2)
    assert plan.requires.starts is None
    assert '"starts":null' in plan.to_json()
    moved = plan.model_copy(update={"requires": plan.requires.model_copy(update={"starts": [0, 1]})})
    assert [violation.code for violation in validate(moved)] == ["requires"]


def test_shorter_ends_have_one_layer_fewer_where_every_stage_keeps_one() -> None:
    assert shorter_ends(14, 4) == [0, 3, 7, 11]
    assert shorter_ends(4, 4) is None
    assert shorter_ends(3, 2) == [0, 2]
