"""A profile as a table for the terminal, with what it says about itself."""

from __future__ import annotations

from collections.abc import Iterator
from itertools import groupby

from zbplan.profile import Profile

_MIB = 1 << 20
_COLUMNS = (
    ("F ms", "t_f_ms", 1),
    ("B ms", "t_b_ms", 1),
    ("W ms", "t_w_ms", 1),
    ("BW ms", "t_bw_ms", 1),
    ("M_B MiB", "m_b_bytes", _MIB),
    ("M_W MiB", "m_w_bytes", _MIB),
    ("peak MiB", "m_peak_bytes", _MIB),
    ("static MiB", "m_static_bytes", _MIB),
)


def report(profile: Profile) -> str:
    """Return a row per stage, and below it a line per thing to know: spread, checks, estimated and forced fields."""
    return "\n".join([table(profile), *_spread(profile), *_checks(profile), *_marks(profile)])


def table(profile: Profile) -> str:
    """Return a row per stage; the last columns are T_comm to and from the next stage.

    Only for a measured profile, which has one number per stage.
    """
    comm = profile.comm()
    headers = ["stage", *(header for header, _, _ in _COLUMNS), "to next ms", "from next ms"]
    rows = [headers]
    columns = [(profile.per_stage(field), unit) for _, field, unit in _COLUMNS]
    for stage in range(profile.stages):
        figures = [f"{_number(column[stage]) / unit:.3f}" for column, unit in columns]
        between = [f"{way[stage]:.3f}" if stage + 1 < profile.stages else "" for way in (comm.forward, comm.backward)]
        rows.append([str(stage), *figures, *between])
    widths = [max(map(len, column)) for column in zip(*rows, strict=True)]
    lines = ("  ".join(cell.rjust(width) for cell, width in zip(row, widths, strict=True)) for row in rows)
    return "\n".join(line.rstrip() for line in lines)


def _number(entry: float | list[float]) -> float:
    if isinstance(entry, list):
        raise TypeError("found one number per microbatch; needed one per stage")
    return entry


def _spread(profile: Profile) -> Iterator[str]:
    """Say how wide the samples of the widest of F, B, W and BW lie."""
    if profile.statistics is None:
        return
    worst = (0.0, "")
    for name, field in (("F", "t_f_ms"), ("B", "t_b_ms"), ("W", "t_w_ms"), ("BW", "t_bw_ms")):
        samples = getattr(profile.statistics, field)
        for stage, spread_ms in enumerate(samples.spread_ms if samples else []):
            middle = _number(profile.per_stage(field)[stage])
            if middle > 0:
                text = f"{name} of stage {stage}, {samples.count[stage]} samples"
                worst = max(worst, (spread_ms / middle, text))
    yield f"spread: at most {worst[0]:.1%} of the median ({worst[1]})"


def _checks(profile: Profile) -> Iterator[str]:
    """Say each check that failed, and of those that passed how far they ranged."""
    for name, group in groupby(sorted(profile.checks, key=lambda check: check.name), key=lambda check: check.name):
        checks = list(group)
        passed = [check.found for check in checks if check.passed]
        yield from (f"check {name}: LOOK: {check.text}" for check in checks if not check.passed)
        if len(checks) == 1 and passed:
            yield f"check {name}: ok: {checks[0].text}"
        elif passed:
            yield f"check {name}: ok ({min(passed):.2f} to {max(passed):.2f}) in {len(passed)} of {len(checks)}"


def _marks(profile: Profile) -> Iterator[str]:
    if profile.estimated:
        yield f"not measured: {', '.join(profile.estimated)}"
    yield from (f"kept by --force: {sentence}" for sentence in profile.forced)
