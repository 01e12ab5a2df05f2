from profiler.table import table
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
