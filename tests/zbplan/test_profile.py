from __future__ import annotations

import json
import math
from typing import Any

import pytest
from hypothesis import given

from tests.strategies import problems
from zbplan.errors import InvalidInputError
from zbplan.layers import even_starts
from zbplan.problem import Problem
from zbplan.profile import Profile

LEAST = {"stages": 4, "t_f_ms": 1, "t_b_ms": 1.5, "t_w_ms": 0.5, "t_comm_ms": 0.1, "m_b_bytes": 2, "m_w_bytes": 1}
DEEP = json.loads("[" * 32 + "]" * 32)


@given(problems())
def test_json_round_trip_is_exact(problem: Problem) -> None:
    profile = problem.profile
    assert Profile.parse_json(profile.to_json()) == profile
    assert Profile.parse_json(profile.to_json()).to_json() == profile.to_json()


@pytest.mark.parametrize(
    ("changes", "path", "found", "needed"),
    [
        ({"t_f_ms": math.nan}, "$.t_f_ms", "nan", "a finite number"),
        ({"t_f_ms": [1, 2, math.inf, 4]}, "$.t_f_ms[2]", "inf", "a finite number"),
        ({"t_f_ms": [1, 2, [3, -1], 4]}, "$.t_f_ms[2][1]", "-1", "greater than or equal to 0"),
        ({"t_f_ms": -1}, "$.t_f_ms", "-1", "greater than or equal to 0"),
        ({"t_f_ms": 1.7e308}, "$.t_f_ms", "1.7e+308", "less than or equal to 1000000000000000000000000000000"),
        ({"m_b_bytes": [1, 2, 3, 1e31]}, "$.m_b_bytes[3]", "1e+31", "less than or equal to 1"),
        ({"t_f_ms": "12"}, "$.t_f_ms", "str '12'", "a valid number"),
        ({"t_f_ms": True}, "$.t_f_ms", "true", "a valid number"),
        ({"t_f_ms": None}, "$.t_f_ms", "None", "a valid number"),
        ({"t_f_ms": [1, 2, 3]}, "$.t_f_ms", "3 entries", "4, one per stage"),
        ({"t_f_ms": [1, 2, 3, []]}, "$.t_f_ms[3]", "list []", "List should have at least 1 item"),
        ({"splittable": [True]}, "$.splittable", "1 entries", "4, one per stage"),
        ({"splittable": 1}, "$.splittable", "1", "a valid boolean"),
        ({"t_comm_ms": {"forward": [1], "backward": [1, 1, 1]}}, "$.t_comm_ms.forward", "1 entries", "3, one per"),
        ({"t_comm_ms": {"forward": [1, 1, 1]}}, "$.t_comm_ms.backward", "nothing", "this field"),
        ({"stages": 10**9}, "$.stages", "1000000000", "less than or equal to 16384"),
        ({"stages": 0}, "$.stages", "0", "greater than or equal to 1"),
        ({"stages": 4.0}, "$.stages", "4.0", "a valid integer"),
        ({"estimated": ["t_x_ms"]}, "$.estimated[0]", "str 't_x_ms'", "'t_f_ms'"),
        (
            {"statistics": {"t_f_ms": {"spread_ms": [0, 0, 0, 0], "count": [3]}}},
            "$.statistics.t_f_ms.count",
            "1 entries",
            "4, by stages",
        ),
        (
            {"statistics": {"t_f_ms": {"spread_ms": [0, 0, 0, 0], "count": [3, 3, 3, -1]}}},
            "$.statistics.t_f_ms.count[3]",
            "-1",
            "greater than or equal to 0",
        ),
        (
            {"checks": [{"name": "x", "found": math.nan, "passed": True, "text": ""}]},
            "$.checks[0].found",
            "nan",
            "a finite number",
        ),
        ({"tf_ms": 1}, "$.tf_ms", "1", "did you mean 't_f_ms'?"),
        ({"t_link_ms": 1}, "$.t_link_ms", "1", "reserved and not supported yet"),
        ({"engine_mode": "magic"}, "$.engine_mode", "str 'magic'", "'weight_grad_store', 'native_split' or 'fused'"),
        ({"format": "zbplan.profile/2"}, "$.format", "str 'zbplan.profile/2'", "'zbplan.profile/1'"),
        ({"environment": {"a": [math.nan]}}, "$.environment.a[0]", "nan", "JSON with finite numbers"),
        (
            {"environment": {"a": DEEP}},
            "$.environment.a" + "[0]" * 31,
            "brackets nested deeper",
            "nested at most 32 deep",
        ),
    ],
)
def test_wrong_field_is_named_with_what_is_needed(changes: dict[str, Any], path: str, found: str, needed: str) -> None:
    with pytest.raises(InvalidInputError) as caught:
        Profile.parse({**LEAST, **changes})
    finding = next(finding for finding in caught.value.findings if finding.path == path)
    assert found == finding.found
    assert needed in finding.needed


def test_environment_may_be_nested_as_deep_as_is_told() -> None:
    profile = Profile.parse({**LEAST, "environment": {"a": DEEP[0]}})
    assert Profile.parse_json(profile.to_json()) == profile


def test_unknown_fields_do_not_hide_missing_ones() -> None:
    with pytest.raises(InvalidInputError) as caught:
        Problem.parse(LEAST)
    paths = {finding.path for finding in caught.value.findings}
    assert {"$.t_f_ms", "$.profile", "$.devices", "$.microbatches"} <= paths


@pytest.mark.parametrize("name", ["stages", "t_f_ms", "t_b_ms", "t_w_ms", "t_comm_ms", "m_b_bytes", "m_w_bytes"])
def test_required_field_is_never_substituted(name: str) -> None:
    with pytest.raises(InvalidInputError, match=rf"\$\.{name}: found nothing"):
        Profile.parse({key: value for key, value in LEAST.items() if key != name})


@pytest.mark.parametrize(
    ("text", "found"),
    [
        ('{"stages": 4', "column 13"),
        ("", "no text"),
        ('{"stages": 4, "stages": 5}', "'stages' twice"),
        ("[" * 100_000, "nested too deep"),
        (b"\xff\xfe", "no UTF-8"),
        ("[1]", r"list \[1\]; needed a JSON object"),
        ('{"stages": ' + "9" * 5000 + "}", "more digits than can be read"),
    ],
)
def test_text_that_is_no_json_object_is_refused(text: str | bytes, found: str) -> None:
    with pytest.raises(InvalidInputError, match=found):
        Profile.parse_json(text)


def test_overflowing_number_is_refused() -> None:
    text = json.dumps(LEAST).replace("1.5", "1e400")
    with pytest.raises(InvalidInputError, match=r"\$\.t_b_ms: found inf"):
        Profile.parse_json(text)


def test_missing_file_is_named() -> None:
    with pytest.raises(InvalidInputError, match=r"nowhere\.json: found No such file"):
        Profile.read("nowhere.json")


def test_fused_backward_defaults_to_the_decimal_sum() -> None:
    profile = Profile.parse({**LEAST, "t_b_ms": 0.1, "t_w_ms": [0.2, 0, 1, [1, 2]]})
    assert profile.per_stage("t_bw_ms") == [0.3, 0.1, 1.1, [1.1, 2.1]]
    assert profile.derived == ("t_bw_ms",)
    assert Profile.parse({**LEAST, "t_bw_ms": 2}).derived == ()


def test_zero_weight_time_and_zero_transfer_are_legal() -> None:
    profile = Profile.parse({**LEAST, "t_w_ms": 0, "t_comm_ms": 0})
    assert profile.per_stage("t_w_ms") == [0.0] * 4


def test_fused_engine_splits_no_stage() -> None:
    assert Profile.parse({**LEAST, "engine_mode": "fused"}).splits() == [False] * 4


EVIDENCE = {
    "name": "named",
    "estimated": ["t_comm_ms"],
    "forced": ["stage 0, F: found a spread of 30 % of the median"],
    "statistics": {
        "t_f_ms": {"spread_ms": [0.1] * 4, "count": [5] * 4},
        "t_comm_ms": {way: {"spread_ms": [0.0] * 3, "count": [5] * 3} for way in ("forward", "backward")},
    },
    "checks": [{"name": "split_overhead", "stage": 1, "found": 1.2, "passed": False, "text": "B + W is 1.2 times BW"}],
    "layers": {"count": 4, "t_f_ms": 1, "t_b_ms": 1.5, "t_w_ms": 0.5, "m_b_bytes": 2, "m_w_bytes": 1},
    "environment": {"device": "any"},
}


def test_evidence_reads_back_equal_and_is_no_part_of_the_canonical_form() -> None:
    profile = Profile.parse({**LEAST, **EVIDENCE})
    assert Profile.parse_json(profile.to_json()) == profile
    assert profile.canonical() == Profile.parse(LEAST).canonical()


LAYERS = {
    "count": 4,
    "t_f_ms": [0.1, 1, 1, 0.2],
    "t_b_ms": 1,
    "t_w_ms": [0, 0.5, 0.5, 0.1],
    "m_b_bytes": [30, 50, 50, 40],
    "m_w_bytes": [0, 20, 20, 7],
    "m_static_bytes": 100,
    "m_peak_bytes": [1, 9, 9, 3],
    "boundary_bytes": [10, 10, 10, 0],
    "splittable": [False, True, True, True],
}


def test_a_cut_sums_its_layers_and_counts_inner_tensors_once() -> None:
    profile = Profile.parse({**LEAST, "layers": LAYERS, "environment": {"placement": "linear", "device": "any"}})
    cut = profile.cut([0, 1])
    assert (cut.stages, cut.t_comm_ms, cut.layers) == (2, 0.1, profile.layers)
    assert cut.t_f_ms == [0.1, 2.2]
    assert cut.t_b_ms == [1.0, 3.0]
    assert cut.t_w_ms == [0.0, 1.1]
    assert cut.t_bw_ms is None
    assert cut.m_b_bytes == [30, 50 + 50 + 40 - 10 - 10]
    assert cut.m_w_bytes == [0, 47]
    assert cut.m_static_bytes == [100, 300]
    assert cut.m_peak_bytes == [1, 9]
    assert cut.boundary_bytes == [10, 0]
    assert cut.splittable == [False, True]
    assert cut.environment == {"device": "any"}


@pytest.mark.parametrize(
    ("changes", "starts", "complaint"),
    [
        ({}, [0], r"\$\.layers: found nothing"),
        ({"layers": LAYERS}, [1, 2], r"\$\.starts: found \[1, 2\]; needed 0, then larger layers below 4"),
        ({"layers": LAYERS}, [0, 2, 2], r"\$\.starts"),
        ({"layers": LAYERS}, [0, 4], r"\$\.starts"),
        ({"layers": LAYERS}, [], r"\$\.starts"),
        ({"layers": LAYERS, "t_comm_ms": {"forward": [1, 2, 3], "backward": [1, 2, 3]}}, [0], "needed one number"),
        ({"layers": {**LAYERS, "t_f_ms": [1]}}, [0], r"\$\.layers\.t_f_ms: found 1 entries; needed 4, one per layer"),
        ({"layers": {**LAYERS, "stages": 4}}, [0], r"\$\.layers\.stages: found 4; needed"),
    ],
)
def test_what_cannot_be_cut_is_refused(changes: dict[str, Any], starts: list[int], complaint: str) -> None:
    with pytest.raises(InvalidInputError, match=complaint):
        Profile.parse({**LEAST, **changes}).cut(starts)


def test_transfer_times_that_differ_can_be_replaced_for_a_cut() -> None:
    comm = {"forward": [1, 2, 3], "backward": [1, 2, 3]}
    assert Profile.parse({**LEAST, "layers": LAYERS, "t_comm_ms": comm}).cut([0, 2], t_comm_ms=2).t_comm_ms == 2


@pytest.mark.parametrize(("stages", "starts"), [(1, [0]), (2, [0, 2]), (3, [0, 2, 3]), (4, [0, 1, 2, 3])])
def test_an_even_cut_gives_the_first_stages_the_longer_share(stages: int, starts: list[int]) -> None:
    assert even_starts(4, stages) == starts


@pytest.mark.parametrize("stages", [0, 5])
def test_an_even_cut_needs_a_layer_for_each_stage(stages: int) -> None:
    with pytest.raises(InvalidInputError, match=rf"found {stages}; needed 1 to 4, a layer or more each"):
        even_starts(4, stages)
