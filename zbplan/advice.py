"""Advice: what is legal in a problem and yet most often a mistake, said as warnings."""

from __future__ import annotations

from collections.abc import Iterator

from zbplan.problem import Problem

NEAR = 0.15
"""Relative difference up to which two times count as about equal."""


def advice(problem: Problem) -> list[str]:
    """Return one sentence per likely mistake, each starting with its JSON path."""
    return [*_backward_includes_weight(problem), *_communication_bound(problem)]


def _backward_includes_weight(problem: Problem) -> Iterator[str]:
    """Warn about T_B as other papers count it: a fused backward takes about 2 T_F, of which W is about T_F."""
    t_f, t_b, t_w = (_mean(problem, name) for name in ("t_f_ms", "t_b_ms", "t_w_ms"))
    if includes_weight(t_f, t_b, t_w):
        yield (
            f"$.profile.t_b_ms: {t_b:g} ms on average is about 2 t_f_ms ({t_f:g} ms), while t_w_ms is about t_f_ms "
            f"({t_w:g} ms): looks like B including W; t_b_ms is the input gradient only, t_bw_ms is both"
        )


def _communication_bound(problem: Problem) -> Iterator[str]:
    comm = problem.profile.comm()
    slowest = max([*comm.forward, *comm.backward], default=0.0)
    t_f = _mean(problem, "t_f_ms")
    if problem.devices > 1 and slowest > 0 and slowest >= t_f:
        yield (
            f"$.profile.t_comm_ms: {slowest:g} ms is no less than t_f_ms ({t_f:g} ms on average): communication bound; "
            "fewer devices, larger stages or a faster link would do more than any schedule"
        )


def includes_weight(t_f: float, t_b: float, t_w: float) -> bool:
    """Tell whether T_B looks like that of a fused backward."""
    return _near(t_b, 2 * t_f) and _near(t_w, t_f)


def _near(found: float, expected: float) -> bool:
    """Tell whether two times are about equal; none is about 0."""
    return expected > 0 and abs(found - expected) <= NEAR * expected


def _mean(problem: Problem, name: str) -> float:
    """Return the mean of a measured time over stages and microbatches."""
    entries = problem.canonical_profile[name]
    means = [sum(entry) / len(entry) if isinstance(entry, list) else entry for entry in entries]
    return float(sum(means) / len(means))
