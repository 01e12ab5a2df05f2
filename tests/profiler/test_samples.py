import re

import pytest

from profiler.errors import MeasurementError
from profiler.samples import Steps
from zbplan.duration import NEVER, Duration


def test_slow_first_step_is_not_averaged_in() -> None:
    samples_ms = [23376.6, 15154.0, 15149.0, 15151.0, 15150.0]
    assert Steps(warmup=1, steady=4).duration(samples_ms) == Duration(15150.5, 1.0, 4)


def test_one_outlier_moves_neither_median_nor_spread() -> None:
    assert Steps(warmup=1, steady=5).duration([9.0, 2.0, 2.0, 2.5, 50.0, 1.5]) == Duration(2.0, 0.5, 5)


def test_without_a_steady_sample_there_is_no_median() -> None:
    with pytest.raises(MeasurementError, match="found 0 steady samples; needed 3 or more"):
        Steps(warmup=1, steady=0)


@pytest.mark.parametrize(
    ("duration", "doubt"),
    [
        (Duration(10.0, 1.0, 3), None),
        (Duration(10.0, 1.01, 5), r"found a spread of 1.01 ms around 10 ms \(10%\) over 5 samples; needed 10% or less"),
        (Duration(10.0, 0.0, 2), "found 2 steady samples; needed 3 or more"),
        (Duration(0.1, 0.09, 5), None),
        (NEVER, None),
    ],
)
def test_a_median_is_in_doubt_with_few_or_scattered_samples(duration: Duration, doubt: str | None) -> None:
    found = duration.doubt(microbatch_ms=20.0)
    assert (found is None) if doubt is None else re.fullmatch(doubt, found)


def test_a_first_step_is_never_steady() -> None:
    with pytest.raises(MeasurementError, match="found 0 warm-up steps; needed 1 or more"):
        Steps(warmup=0, steady=5)


def test_short_ops_run_more_often() -> None:
    assert Steps(2, 5).times(6) == Steps(12, 30)
    assert len(Steps(2, 5)) == 7
