import pytest

from profiler.errors import MeasurementError
from profiler.samples import Duration, Steps


def test_slow_first_step_is_not_averaged_in() -> None:
    samples_ms = [23376.6, 15154.0, 15149.0, 15151.0, 15150.0]
    assert Steps(warmup=1, steady=4).duration(samples_ms) == Duration(15150.5, 1.0, 4)


def test_one_outlier_moves_neither_median_nor_spread() -> None:
    assert Steps(warmup=1, steady=5).duration([9.0, 2.0, 2.0, 2.5, 50.0, 1.5]) == Duration(2.0, 0.5, 5)


@pytest.mark.parametrize("steady", [2, 1, 0, -1])
def test_fewer_than_three_steady_samples_are_refused(steady: int) -> None:
    with pytest.raises(MeasurementError, match=f"found {steady} steady samples; needed 3 or more"):
        Steps(warmup=1, steady=steady)


def test_a_first_step_is_never_steady() -> None:
    with pytest.raises(MeasurementError, match="found 0 warm-up steps; needed 1 or more"):
        Steps(warmup=0, steady=5)


def test_short_ops_run_more_often() -> None:
    assert Steps(2, 5).times(6) == Steps(12, 30)
    assert len(Steps(2, 5)) == 7
