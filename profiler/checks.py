"""Cross-checks of measured numbers against each other; each says what it found and what it means."""

from __future__ import annotations

from collections.abc import Iterator, Sequence

from profiler.stage import StageFigures
from zbplan.advice import NEAR, includes_weight
from zbplan.evidence import Check
from zbplan.verdict import MOST_OUTSIDE

LEAST_IN_OPS = 0.8
"""Part of a microbatch that F, B and W should take when nothing else runs."""

Found = tuple[str, float, bool, str]
"""Name, ratio, whether it is as it should be, and what that means."""


def stage_checks(figures: Sequence[StageFigures], part: str = "stage") -> list[Check]:
    """Check the times of each stage, or of each layer, against each other."""
    checks = []
    for index, figure in enumerate(figures):
        found = (*_split_overhead(figure), *_b_without_w(figure), *_ops_in_microbatch(figure))
        stage = index if part == "stage" else None
        checks += [
            Check(name=name, stage=stage, found=round(ratio, 4), passed=passed, text=f"{part} {index}: {text}")
            for name, ratio, passed, text in found
        ]
    return checks


def iteration_checks(busy_ms: float, step_ms: float, iteration_ms: float) -> Iterator[Check]:
    """Check a running job: the busiest device's ops against the step, and the step against the whole iteration."""
    if step_ms <= 0:
        return
    busy, outside = busy_ms / step_ms, max(0.0, 1 - step_ms / iteration_ms)
    yield Check(
        name="ops_in_step",
        found=round(busy, 4),
        passed=True,
        text=f"F, B and W of the busiest device take {busy:.0%} of the step of {step_ms:.4g} ms: "
        "what a better schedule could win is in the rest",
    )
    meaning = "your schedule is not the bottleneck" if outside > MOST_OUTSIDE else "the schedule is what counts"
    yield Check(
        name="outside_step",
        found=round(outside, 4),
        passed=outside <= MOST_OUTSIDE,
        text=f"{outside:.0%} of an iteration passes outside the step (data, optimizer): {meaning}",
    )


def _split_overhead(figure: StageFigures) -> Iterator[Found]:
    b, w, fused = (figure.times[field] for field in ("t_b_ms", "t_w_ms", "t_bw_ms"))
    if w.samples and fused.median_ms > 0:
        ratio = (b.median_ms + w.median_ms) / fused.median_ms
        meaning = "as it should be"
        if ratio > 1 + NEAR:
            meaning = "splitting costs more than most bubbles are worth"
        if ratio < 1 - NEAR:
            meaning = "they should not be faster apart, W may not run in full"
        yield "split_overhead", ratio, abs(ratio - 1) <= NEAR, f"B + W takes {ratio:.2f} times BW: {meaning}"


def _b_without_w(figure: StageFigures) -> Iterator[Found]:
    f, b, w = (figure.times[field] for field in ("t_f_ms", "t_b_ms", "t_w_ms"))
    if w.samples and f.median_ms > 0:
        b_to_f, w_to_f = b.median_ms / f.median_ms, w.median_ms / f.median_ms
        suspect = includes_weight(f.median_ms, b.median_ms, w.median_ms)
        meaning = ": this looks like B including W" if suspect else ""
        yield "b_without_w", b_to_f, not suspect, f"B takes {b_to_f:.2f} times F, W {w_to_f:.2f} times{meaning}"


def _ops_in_microbatch(figure: StageFigures) -> Iterator[Found]:
    if figure.microbatch.median_ms > 0:
        share = figure.busy_ms / figure.microbatch.median_ms
        passed = share >= LEAST_IN_OPS
        meaning = "" if passed else ": your schedule is not the bottleneck"
        yield "ops_in_microbatch", share, passed, f"F, B and W take {share:.0%} of a microbatch{meaning}"
