import pytest

from profiler.checks import iteration_checks, stage_checks
from profiler.stage import StageFigures
from zbplan.duration import NEVER, Duration


def figure(f: float, b: float, w: float, bw: float, microbatch: float | None = None) -> StageFigures:
    ops = [Duration(ms, 0.0, 5) if ms else NEVER for ms in (f, b, w, bw)]
    times = dict(zip(("t_f_ms", "t_b_ms", "t_w_ms", "t_bw_ms"), ops, strict=True))
    return StageFigures(times, {}, Duration(f + b + w if microbatch is None else microbatch, 0.0, 5), "float32")


def found(name: str, **times: float):
    (check,) = (check for check in stage_checks([figure(**times)]) if check.name == name)
    return check


@pytest.mark.parametrize(
    ("b", "w", "passed", "meaning"),
    [
        (10, 10, True, "1.00 times BW: as it should be"),
        (15, 10, False, "1.25 times BW: splitting costs more"),
        (8, 4, False, "W may not run"),
    ],
)
def test_b_and_w_are_held_against_bw(b: float, w: float, passed: bool, meaning: str) -> None:
    check = found("split_overhead", f=10, b=b, w=w, bw=20)
    assert (check.stage, check.passed) == (0, passed)
    assert meaning in check.text


@pytest.mark.parametrize(("b", "w", "passed"), [(20, 10, False), (21, 11, False), (10, 10, True), (20, 5, True)])
def test_b_that_includes_w_is_suspected(b: float, w: float, passed: bool) -> None:
    check = found("b_without_w", f=10, b=b, w=w, bw=b + w)
    assert check.passed == passed
    assert ("this looks like B including W" in check.text) != passed


def test_time_outside_the_ops_is_told() -> None:
    check = found("ops_in_microbatch", f=10, b=10, w=10, bw=20, microbatch=60)
    assert check.found == 0.5
    assert not check.passed
    assert check.text == "stage 0: F, B and W take 50% of a microbatch: your schedule is not the bottleneck"


def test_a_stage_that_is_not_split_has_nothing_to_hold_against_bw() -> None:
    assert [check.name for check in stage_checks([figure(f=10, b=20, w=0, bw=20)])] == ["ops_in_microbatch"]


def test_layers_are_named_as_layers() -> None:
    checks = stage_checks([figure(f=10, b=10, w=10, bw=20)] * 2, "layer")
    assert {check.stage for check in checks} == {None}
    assert checks[-1].text.startswith("layer 1: ")


@pytest.mark.parametrize(("iteration_ms", "passed"), [(110.0, True), (200.0, False)])
def test_an_iteration_is_held_against_its_step(iteration_ms: float, passed: bool) -> None:
    ops, outside = iteration_checks(busy_ms=80.0, step_ms=100.0, iteration_ms=iteration_ms)
    assert (ops.found, ops.passed) == (0.8, True)
    assert outside.passed == passed
    assert ("your schedule is not the bottleneck" in outside.text) != passed
