"""Constructive schedules: built in milliseconds, always legal."""

from heuristic.catalog import (
    METHODS,
    PLANNER,
    Builder,
    Built,
    Refused,
    best_per_placement,
    build,
    candidates,
    construct,
    feasible_placements,
)
from heuristic.planner import QUICK, THOROUGH, improvements

__all__ = [
    "METHODS",
    "PLANNER",
    "QUICK",
    "THOROUGH",
    "Builder",
    "Built",
    "Refused",
    "best_per_placement",
    "build",
    "candidates",
    "construct",
    "feasible_placements",
    "improvements",
]
