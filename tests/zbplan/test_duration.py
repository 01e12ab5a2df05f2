from __future__ import annotations

import pytest

from zbplan.duration import NEVER, Duration


def test_one_outlier_moves_neither_median_nor_spread() -> None:
    assert Duration.of([2.0, 2.5, 50.0, 1.5, 2.0]) == Duration(2.0, 0.5, 5)


@pytest.mark.parametrize(
    ("duration", "doubt"),
    [
        (Duration(10.0, 1.0, 3), None),
        (Duration(10.0, 1.01, 5), "found a spread of 1.01 ms around 10 ms (10%) over 5 samples; needed 10% or less"),
        (Duration(10.0, 0.0, 2), "found 2 steady samples; needed 3 or more"),
        (Duration(0.1, 0.09, 5), None),
        (NEVER, None),
    ],
)
def test_a_median_is_in_doubt_with_few_or_scattered_samples(duration: Duration, doubt: str | None) -> None:
    found = duration.doubt(microbatch_ms=20.0)
    assert (None if found is None else str(found)) == doubt
