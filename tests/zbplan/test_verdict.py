from __future__ import annotations

from typing import Any

from tests.runtime_client.plans import zb_h1
from tests.zbplan.traces import as_planned, stretched
from zbplan.trace import Trace
from zbplan.trace_report import report
from zbplan.verdict import verdict

PLAN = zb_h1(4, 8)
PLANNED = f"{PLAN.metrics.iteration_ms:.4g}"


def verdict_of(trace: Trace) -> list[str]:
    return verdict(report(PLAN, trace))


def later(**options: Any) -> Trace:
    return as_planned(PLAN, steps=3, first_step=2, **options)


def slower(kind: str, stage: int, factor: float) -> Trace:
    def stretch(of_kind: str, of_stage: int, *_: int) -> float:
        return factor if (of_kind, of_stage) == (kind, stage) else 1.0

    return stretched(PLAN, stretch, steps=3, first_step=2)


def test_a_job_that_runs_as_planned_is_said_to() -> None:
    assert verdict_of(later()) == [f"the iteration takes {PLANNED} ms where {PLANNED} are planned: as planned"]


def test_a_slower_op_is_named_with_device_and_what_to_do() -> None:
    first, second = verdict_of(slower("B", 2, 1.18))
    assert first.startswith("the iteration takes ")
    assert (
        second == "device 2's B (stage 2) is 18% slower than profiled: profile again, or plan on this trace (--replan)"
    )


def test_a_faster_op_is_named_too() -> None:
    assert "device 1's W (stage 1) is 40% faster than profiled" in verdict_of(slower("W", 1, 0.6))[1]


def test_a_small_difference_is_no_word_worth() -> None:
    assert len(verdict_of(slower("B", 2, 1.04))) == 1


def test_of_many_slower_ops_the_worst_are_named() -> None:
    found = verdict_of(stretched(PLAN, lambda *_: 1.3, steps=3, first_step=2))
    assert sum("slower than profiled" in sentence for sentence in found) == 3
    assert "and 9 more kinds of ops differ from the profile" in found


def test_time_between_steps_makes_the_schedule_no_bottleneck() -> None:
    assert "your schedule is not the bottleneck: 50% of" in verdict_of(later(gap_ms=PLAN.metrics.iteration_ms))[1]


def test_slow_transfers_are_named_by_their_stages() -> None:
    found = verdict_of(later(lag_factor=12.0))
    assert any(
        sentence.startswith("transfers from stage 0 to 1 take 6 ms where 0.5 are planned: measure T_comm again")
        for sentence in found
    )


def test_a_host_that_is_late_is_named() -> None:
    found = verdict_of(later(overhead_ms=0.5))
    assert any(
        sentence.startswith("device ")
        and "outside F, B, W and transfers: where gradients are averaged" in sentence
        and "overlap_grad_reduce=True" in sentence
        for sentence in found
    )


def test_more_memory_than_planned_is_named() -> None:
    peak = PLAN.metrics.peak_bytes[0]
    found = verdict_of(later(peak_bytes=1.5 * peak))
    assert (
        f"device 0 needs 1.50 times the memory planned ({1.5 * peak:.4g} of {peak:.4g} bytes): measure memory again"
        in found[1]
    )
    assert found[1].endswith("a plan counts no transfers under way (boundary_bytes each)")
    assert len(verdict_of(later(peak_bytes=1.01 * min(PLAN.metrics.peak_bytes)))) == 1


def test_first_steps_are_said_to_be_that() -> None:
    assert verdict_of(as_planned(PLAN, steps=2))[-1].startswith("these are the first steps of the job")


def test_clocks_that_differ_by_more_than_an_op_are_told() -> None:
    unsure = later().model_copy(update={"clock_error_ms": [0.0, 0.4, 0.2, 0.1]})
    assert len(verdict_of(unsure)) == 1
    unsure = later().model_copy(update={"clock_error_ms": [0.0, 2.0, 0.2, 0.1]})
    assert verdict_of(unsure)[-1].startswith("the clocks of two devices may be off by 4 ms")


def test_a_slower_iteration_that_nothing_explains_points_at_where_it_begins() -> None:
    def one_op(kind: str, stage: int, microbatch: int, _: int) -> float:
        return 6.0 if (kind, stage, microbatch) == ("B", 3, 0) else 1.0

    (sentence,) = verdict_of(stretched(PLAN, one_op, steps=3, first_step=2))
    assert sentence.endswith("and nothing stands out: see B(stage 3, microbatch 0) on device 3, where it begins")
