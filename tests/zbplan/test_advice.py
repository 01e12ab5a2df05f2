from __future__ import annotations

from typing import Any

import pytest

from zbplan.advice import advice
from zbplan.problem import Problem

NOTHING = {"t_f_ms": 0, "t_b_ms": 0, "t_w_ms": 0, "t_comm_ms": 0}


def warnings_for(devices: int = 4, **changes: Any) -> list[str]:
    profile = {"stages": 4, "t_f_ms": 10, "t_b_ms": 10, "t_w_ms": 8, "t_comm_ms": 1, "m_b_bytes": 2, "m_w_bytes": 1}
    return advice(Problem.parse({"profile": {**profile, **changes}, "devices": devices, "microbatches": 8}))


@pytest.mark.parametrize("times", [{}, {"t_w_ms": 10}, {"t_b_ms": 20, "t_w_ms": 5}, NOTHING])
def test_an_ordinary_profile_gets_no_warning(times: dict[str, float]) -> None:
    assert warnings_for(**times) == []


@pytest.mark.parametrize("t_b_ms", [20, 18, [19, 20, 21, 22], [[19] * 8, 20, 21, [22] * 8]])
def test_b_that_looks_like_b_and_w_is_named(t_b_ms: object) -> None:
    (warning,) = warnings_for(t_b_ms=t_b_ms, t_w_ms=10)
    assert warning.startswith("$.profile.t_b_ms: ")
    assert "looks like B including W" in warning


@pytest.mark.parametrize("t_comm_ms", [10, 20, {"forward": [1, 1, 1], "backward": [1, 11, 1]}])
def test_transfers_as_long_as_f_are_communication_bound(t_comm_ms: object) -> None:
    (warning,) = warnings_for(t_comm_ms=t_comm_ms)
    assert warning.startswith("$.profile.t_comm_ms: ")
    assert "communication bound" in warning


def test_one_device_has_no_transfers() -> None:
    assert warnings_for(devices=1, t_comm_ms=20) == []
