"""Exhaustive: every cut of the layers, for small models."""

from __future__ import annotations

from itertools import combinations
from math import comb

import numpy as np

from zbplan.errors import Finding, InvalidInputError
from zbplan.instance import IntArray

MOST_CUTS = 20_000
"""Cuts up to which all are looked at."""


def every_cut(layers: int, stages: int) -> IntArray:
    """Return all cuts, int64[cuts, stages].

    Raises
    ------
    InvalidInputError
        If there are too many of them.
    """
    count = comb(layers - 1, stages - 1)
    if count > MOST_CUTS:
        found = f"{layers} layers, which can be cut in {stages} stages in {count} ways"
        needed = f"at most {MOST_CUTS} ways for an exact search: fewer layers or devices, or no exact search"
        raise InvalidInputError([Finding("$.profile.layers.count", found, needed)])
    inner = np.array(list(combinations(range(1, layers), stages - 1)), dtype=np.int64)
    return np.concatenate([np.zeros((count, 1), dtype=np.int64), inner.reshape(count, stages - 1)], axis=1)
