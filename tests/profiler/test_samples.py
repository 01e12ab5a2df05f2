import pytest

from profiler.errors import MeasurementError
from profiler.samples import Steps
from zbplan.duration import Duration


def test_slow_first_step_is_not_averaged_in() -> None:
    samples_ms = [23376.6, 15154.0, 15149.0, 15151.0, 15150.0]
    assert Steps(warmup=1, steady=4).duration(samples_ms) == Duration(15150.5, 1.0, 4)


def test_without_a_steady_sample_there_is_no_median() -> None:
    with pytest.raises(MeasurementError, match="found 0 steady samples; needed 3 or more"):
        Steps(warmup=1, steady=0)


def test_a_first_step_is_never_steady() -> None:
    with pytest.raises(MeasurementError, match="found 0 warm-up steps; needed 1 or more"):
        Steps(warmup=0, steady=5)


def test_short_ops_run_more_often() -> None:
    assert Steps(2, 5).times(6) == Steps(12, 30)
    assert len(Steps(2, 5)) == 7
