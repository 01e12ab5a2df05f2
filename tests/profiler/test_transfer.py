from __future__ import annotations

from profiler.samples import Steps
from profiler.transfer import t_comm

TRIPS_MS = [(0.01, 50, 50), (0.2, 1, 2), (8, 1, 2), (8, 1, 9), (0.2, 9, 2)]
"""Notes held up in half of the rounds, after one of warm-up, with a note quicker than any later."""


def test_a_note_that_was_held_up_does_not_make_transfers_quicker() -> None:
    forward, backward = t_comm(Steps(warmup=1, steady=4), TRIPS_MS)
    assert (forward.median_ms, backward.median_ms) == (0.9, 1.9)
