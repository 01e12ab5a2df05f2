"""A profile as a table for the terminal."""

from __future__ import annotations

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


def table(profile: Profile) -> str:
    """Return a row per stage; the last columns are T_comm to and from the next stage.

    Only for a measured profile, which has one number per stage.
    """
    comm = profile.comm()
    headers = ["stage", *(header for header, _, _ in _COLUMNS), "to next ms", "from next ms"]
    rows = [headers]
    for stage in range(profile.stages):
        figures = [f"{profile.per_stage(field)[stage] / unit:.3f}" for _, field, unit in _COLUMNS]
        between = [f"{way[stage]:.3f}" if stage + 1 < profile.stages else "" for way in (comm.forward, comm.backward)]
        rows.append([str(stage), *figures, *between])
    widths = [max(map(len, column)) for column in zip(*rows, strict=True)]
    lines = ("  ".join(cell.rjust(width) for cell, width in zip(row, widths, strict=True)) for row in rows)
    return "\n".join(line.rstrip() for line in lines)
