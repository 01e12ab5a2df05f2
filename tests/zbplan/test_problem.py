from __future__ import annotations

import json
from typing import Any

import numpy as np
import pytest
from hypothesis import given

from tests.strategies import problems
from zbplan.errors import InvalidInputError
from zbplan.instance import BW, B, F, W
from zbplan.problem import Problem

PROFILE = {"stages": 4, "t_f_ms": 1, "t_b_ms": 1.5, "t_w_ms": 0.5, "t_comm_ms": 0.1, "m_b_bytes": 2, "m_w_bytes": 1}


def problem(profile: dict[str, Any] | None = None, **changes: Any) -> Problem:
    fields = {"devices": 4, "microbatches": 8, "placement": "linear", "memory_limit": "1x"}
    return Problem.parse({"profile": {**PROFILE, **(profile or {})}, **fields, **changes})


@given(problems(placements=("linear", "v", "interleaved")))
def test_canonical_form_is_a_problem_with_the_same_key(problem: Problem) -> None:
    again = Problem.parse(json.loads(json.dumps(problem.canonical)))
    assert again.key == problem.key
    assert again.canonical == problem.canonical
    assert Problem.parse_json(problem.to_json()) == problem


@pytest.mark.parametrize(
    "same",
    [
        problem(memory_limit=8),
        problem(memory_limit=[8, 8, 8, 8.0]),
        problem(placement=[[0], [1], [2], [3]]),
        problem(placement="auto"),
        problem(time_limit_s=99),
        problem({"name": "other", "environment": {"device": "x"}}),
        problem({"t_f_ms": [1, 1, [1] * 8, 1]}),
        problem({"t_comm_ms": {"forward": [0.1] * 3, "backward": [0.1] * 3}}),
        problem({"t_bw_ms": 2}),
    ],
)
def test_equal_problems_share_a_key(same: Problem) -> None:
    assert same.key == problem().key


@pytest.mark.parametrize(
    "other",
    [
        problem({"t_f_ms": 1.000001}),
        problem({"engine_mode": "native_split"}),
        problem({"splittable": False}),
        problem({"t_bw_ms": 1.9}),
        problem({"m_peak_bytes": 1}),
        problem(memory_limit=None),
        problem(microbatches=9),
        problem(optimizer="post_validated"),
        problem(method="1f1b"),
    ],
)
def test_whatever_changes_the_answer_changes_the_key(other: Problem) -> None:
    assert other.key != problem().key


@pytest.mark.parametrize(
    ("changes", "path", "needed"),
    [
        ({"devices": 0}, "$.devices", "greater than or equal to 1"),
        ({"microbatches": 0}, "$.microbatches", "greater than or equal to 1"),
        ({"devices": 5}, "$.placement", "at least one stage per device"),
        ({"placement": "v"}, "$.placement", "8 stages, two per device"),
        ({"placement": "interleaved"}, "$.placement", "a multiple of 4 stages"),
        ({"placement": "ring"}, "$.placement", "one of auto, linear, interleaved, v"),
        ({"placement": [[0], [1], [2], [2]]}, "$.placement[3][0]", "every stage once"),
        ({"placement": [[0], [1], [2], []]}, "$.placement[3]", "at least one stage"),
        ({"placement": [[0], [1], [2], [4]]}, "$.placement[3][0]", "a stage from 0 to 3"),
        ({"placement": [[0, 1], [2, 3]]}, "$.placement", "4 lists, one per device"),
        ({"memory_limit": "1p"}, "$.memory_limit", 'a multiple like "1.5x"'),
        ({"memory_limit": [1, 2]}, "$.memory_limit", "4, one per device"),
        ({"memory_limit": -1}, "$.memory_limit", "greater than or equal to 0"),
        ({"memory_limit": float("nan")}, "$.memory_limit", "a finite number"),
        ({"method": "zb_h3"}, "$.method", "zb_h1"),
        ({"time_limit_s": 0}, "$.time_limit_s", "greater than 0"),
        ({"memory_limits": 1}, "$.memory_limits", "did you mean 'memory_limit'?"),
        ({"microbatches": 65536, "profile": {**PROFILE, "stages": 64}}, "$.microbatches", "at most 4000000 ops"),
        ({"profile": {**PROFILE, "t_f_ms": [1, 1, 1, [1, 2]]}}, "$.profile.t_f_ms[3]", "8, one per microbatch"),
        (
            {"profile": {**PROFILE, "m_static_bytes": [1, 1, 1, [1] * 8]}},
            "$.profile.m_static_bytes[3]",
            "one number per stage",
        ),
        ({"profile": {**PROFILE, "t_f_ms": 1e-7}}, "$.profile.t_f_ms[0]", "a multiple of the tick of 1e-6 ms"),
        ({"profile": {**PROFILE, "t_f_ms": 1e14}}, "$.profile.t_b_ms[0]", "a multiple of the tick"),
    ],
)
def test_wrong_problem_is_refused_by_path(changes: dict[str, Any], path: str, needed: str) -> None:
    with pytest.raises(InvalidInputError) as caught:
        problem(**changes)
    finding = next(finding for finding in caught.value.findings if finding.path == path)
    assert needed in finding.needed


def test_three_stages_on_four_devices_are_refused_with_counts() -> None:
    with pytest.raises(InvalidInputError, match="4 devices for 3 stages"):
        problem({"stages": 3})


def test_transfer_times_of_another_placement_are_refused() -> None:
    comm = {"forward": [0.1] * 7, "backward": [0.2] * 7}
    profile = {"stages": 8, "t_comm_ms": comm, "environment": {"placement": "v"}}
    assert problem(profile, placement="v").placements == [[[0, 7], [1, 6], [2, 5], [3, 4]]]
    with pytest.raises(InvalidInputError, match="measured on placement"):
        problem(profile, placement="interleaved")


def test_multiple_counts_the_heaviest_device_and_each_keeps_its_static_and_inner_memory() -> None:
    profile = {"stages": 8, "m_b_bytes": [1, 2, 3, 4, 5, 6, 7, 8], "m_w_bytes": 0}
    extra = {"m_static_bytes": 10, "m_peak_bytes": [1, 0, 0, 0, 0, 0, 0, 3]}
    asked = problem({**profile, **extra}, placement="v", memory_limit="0.5x")
    assert asked.limits(asked.placements[0]) == [18 + 20 + 3, 18 + 20, 18 + 20, 18 + 20]


def test_auto_placement_offers_what_the_stages_allow() -> None:
    assert problem({"stages": 8}, placement="auto").placements == [
        [[0, 7], [1, 6], [2, 5], [3, 4]],
        [[0, 4], [1, 5], [2, 6], [3, 7]],
    ]


def test_instance_counts_in_nanoseconds_and_whole_memory_units() -> None:
    instance = problem({"m_b_bytes": 0.3, "m_w_bytes": [0.1, 0.1, 0.1, 0.4]}, memory_limit=0.9).instance()
    assert instance.duration[[F, B, W, BW], 0, 0].tolist() == [1_000_000, 1_500_000, 500_000, 2_000_000]
    assert instance.forward_lag.tolist() == [100_000] * 3
    assert instance.room.tolist() == [9] * 4
    assert instance.hold[:, 3, 0].tolist() == [3, 1, 0, 0]
    assert instance.release[:, 0, 0].tolist() == [0, 2, 1, 3]


def test_limit_is_exact_at_decimal_fractions() -> None:
    """Three times 0.1 fits in 0.3, which binary floats would deny."""
    instance = problem({"m_b_bytes": 0.1, "m_w_bytes": 0}, memory_limit=0.3).instance()
    assert instance.room[0] == 3 * instance.hold[F, 0, 0]


def test_values_with_more_digits_than_integers_hold_are_rounded_against_the_plan() -> None:
    instance = problem({"m_b_bytes": 1e6 / 3, "m_w_bytes": 1e-12}, memory_limit=1e6 + 1 / 3).instance()
    assert instance.memory.value(instance.hold[F, 0, 0]) >= 1e6 / 3
    assert instance.memory.value(instance.room[0]) <= 1e6 + 1 / 3


@pytest.mark.parametrize("held", [1609728.3333333333, 0.7000000000000001, 1 / 3, 12345678901.123457, 1e15 / 3])
@pytest.mark.parametrize("static", [0, 1.1, 1 / 7])
def test_1x_has_room_for_one_microbatch_per_device_whatever_the_digits(held: float, static: float) -> None:
    asked = problem({"m_b_bytes": held, "m_w_bytes": held / 2, "m_static_bytes": static})
    for same in (asked, Problem.parse(asked.canonical)):
        instance = same.instance()
        assert (instance.room // instance.hold[F, :, 0]).tolist() == [4, 4, 4, 4]


def test_huge_times_use_coarser_ticks() -> None:
    asked = problem({"t_f_ms": 1e14, "t_b_ms": 1e14, "t_w_ms": 1e14, "t_comm_ms": 0})
    assert asked.instance().clock.exponent == 1
    assert asked.instance().duration.max() < 2**53


def test_no_transfer_between_stages_of_one_device() -> None:
    instance = problem({"stages": 8}, placement="v").instance()
    assert np.flatnonzero(instance.forward_lag == 0).tolist() == [3]
    assert np.flatnonzero(instance.backward_lag == 0).tolist() == [3]


def test_smallest_room_is_one_microbatch_through_all_stages_of_the_device() -> None:
    profile = {"stages": 8, "m_b_bytes": [1, 2, 3, 4, 5, 6, 7, 8], "m_w_bytes": 99, "m_peak_bytes": 0.5}
    instance = problem(profile, placement="v").instance()
    assert [instance.memory.value(room) for room in instance.smallest_room.tolist()] == [9.5] * 4


def test_changed_copy_computes_everything_anew() -> None:
    first = problem()
    assert first.key != first.model_copy(update={"method": "1f1b"}).key
    assert first.instance().room[0] == 8
    assert first.model_copy(update={"memory_limit": 8.5}).instance().room[0] == 85
