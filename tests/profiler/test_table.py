from profiler.table import report, table
from zbplan.profile import Profile


def test_a_row_per_stage_with_transfers_to_and_from_the_next() -> None:
    profile = Profile.parse(
        {
            "stages": 2,
            "t_f_ms": [1.0, 2.0],
            "t_b_ms": [3.0, 4.0],
            "t_w_ms": [0.0, 5.5],
            "t_bw_ms": [3.0, 9.0],
            "t_comm_ms": {"forward": [0.25], "backward": [0.125]},
            "m_b_bytes": [1 << 20, 3 << 19],
            "m_w_bytes": 0,
        }
    )
    header, *rows = (line.split() for line in table(profile).splitlines())
    assert header[0] == "stage"
    assert [[float(cell) for cell in row] for row in rows] == [
        [0, 1, 3, 0, 3, 1, 0, 0, 0, 0.25, 0.125],
        [1, 2, 4, 5.5, 9, 1.5, 0, 0, 0],
    ]


def test_below_the_table_stands_what_to_know() -> None:
    profile = Profile.parse(
        {
            "stages": 2,
            "t_f_ms": [1.0, 2.0],
            "t_b_ms": 1.0,
            "t_w_ms": 0.5,
            "t_comm_ms": 0.1,
            "m_b_bytes": 0,
            "m_w_bytes": 0,
            "estimated": ["t_comm_ms"],
            "forced": ["stage 1, t_f_ms: scattered"],
            "statistics": {"t_f_ms": {"spread_ms": [0.1, 0.3], "count": [5, 7]}},
            "checks": [
                {"name": "split_overhead", "stage": 0, "found": 1.02, "passed": True, "text": "fine"},
                {"name": "split_overhead", "stage": 1, "found": 1.40, "passed": False, "text": "stage 1: too much"},
                {"name": "outside_step", "found": 0.1, "passed": True, "text": "10% outside"},
            ],
        }
    )
    assert report(profile).splitlines()[3:] == [
        "spread: at most 15.0% of the median (F of stage 1, 7 samples)",
        "check outside_step: ok: 10% outside",
        "check split_overhead: LOOK: stage 1: too much",
        "check split_overhead: ok (1.02 to 1.02) in 1 of 2",
        "not measured: t_comm_ms",
        "kept by --force: stage 1, t_f_ms: scattered",
    ]
