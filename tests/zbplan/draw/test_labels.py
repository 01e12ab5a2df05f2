from __future__ import annotations

import pytest

from zbplan.draw.labels import bound_label, bytes_label, placement_label, span_label
from zbplan.placement import Placement
from zbplan.plan import Bound


@pytest.mark.parametrize(
    ("amount", "label"), [(0, "0 B"), (1, "1 B"), (0.5, "1 B"), (999, "999 B"), (1609728, "1.6 MB"), (2e10, "20.0 GB")]
)
def test_bytes_have_a_unit(amount: float, label: str) -> None:
    assert bytes_label(amount) == label


def test_a_span_of_equal_labels_is_one() -> None:
    assert span_label(["a", "a"]) == "a"
    assert span_label(["a", "b", "c"]) == "a to c"


@pytest.mark.parametrize(
    ("placement", "label"),
    [
        ([[0]], "linear"),
        ([[0], [1]], "linear"),
        ([[0, 3], [1, 2]], "v"),
        ([[0, 2], [1, 3]], "interleaved"),
        ([[1], [0]], "custom placement"),
        ([[0, 1, 2], [3]], "custom placement"),
    ],
)
def test_placements_have_their_names(placement: Placement, label: str) -> None:
    assert placement_label(placement) == label


def test_a_bound_says_whether_it_is_met() -> None:
    assert bound_label(Bound.of(99.0, 100.0, "work")) == "bound 99 ms, gap 1.00%: work"
    assert bound_label(Bound.of(100.0, 100.0, "work")) == "bound 100 ms, proven optimal: work"
