from __future__ import annotations

import numpy as np
import pytest

from zbplan import units
from zbplan.errors import InvalidInputError
from zbplan.profile import Profile
from zbplan.scale import Scale


def profile(**changes: object) -> Profile:
    one = {"stages": 2, "t_f_ms": 1, "t_b_ms": [2, [3, 4]], "t_w_ms": 1, "t_comm_ms": 0.5, "m_b_bytes": 3}
    return Profile.parse({**one, "m_w_bytes": 5, **changes})


def test_each_op_lasts_its_ticks() -> None:
    found = units.durations(profile().canonical(), 2, Scale(-1))
    assert found.tolist() == [[[10, 10]] * 2, [[20, 20], [30, 40]], [[10, 10]] * 2, [[30, 30], [40, 50]]]


def test_amounts_are_rounded_up() -> None:
    assert units.held([1.2, [1.0, 2.1]], 2, Scale(0)).tolist() == [[2, 2], [1, 3]]


@pytest.mark.parametrize("m_w", [2, 5])
def test_what_a_microbatch_takes_it_gives_back(m_w: int) -> None:
    hold, release = units.memory_changes(np.array([[3]]), np.array([[m_w]]))
    f, b, w, bw = (hold - release).ravel().tolist()
    assert (f, f + b, f + b + w, f + bw) == (3, m_w, 0, 0)


def test_a_time_that_ticks_would_change_is_refused_by_name() -> None:
    long_and_short = profile(t_f_ms=[1e12, 1e-7])
    with pytest.raises(
        InvalidInputError, match=r"\$\.profile\.t_f_ms\[1\]: found 1e-07; needed a multiple of the tick"
    ):
        units.clock_for(long_and_short, 2, "$.profile")


def test_memory_is_counted_in_the_digits_of_amounts_and_limits() -> None:
    columns = profile().canonical()
    assert units.memory_for(columns, [], 2) == Scale(0)
    assert units.memory_for(columns, [10.25], 2) == Scale(-2)
