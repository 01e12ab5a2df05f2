"""Exhaustive: every cut of the layers, for small models."""

from __future__ import annotations

from itertools import combinations
from math import comb

import numpy as np

from zbplan.errors import Finding, InvalidInputError
from zbplan.instance import IntArray

MOST_CUTS = 20_000
"""Cuts up to which all are looked at."""


def count_of_cuts(layers: int, stages: int) -> int:
    """Return in how many ways layers can be cut in stages."""
    return comb(layers - 1, stages - 1)


def require_few_cuts(layers: int, stages: int) -> None:
    """Refuse more cuts than can be looked at.

    Raises
    ------
    InvalidInputError
        With the number of cuts.
    """
    count = count_of_cuts(layers, stages)
    if count > MOST_CUTS:
        found = f"{layers} layers, which can be cut in {stages} stages in {count} ways"
        needed = f"at most {MOST_CUTS} ways for an exact search: fewer layers or devices, or no exact search"
        raise InvalidInputError([Finding("$.profile.layers.count", found, needed)])


def every_cut(layers: int, stages: int) -> IntArray:
    """Return all cuts, int64[cuts, stages]; raises as ``require_few_cuts`` does."""
    require_few_cuts(layers, stages)
    return np.array([(0, *inner) for inner in combinations(range(1, layers), stages - 1)], dtype=np.int64)
