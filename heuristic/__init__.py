"""Constructive schedules: built in milliseconds, always legal."""

from heuristic.construct import (
    METHODS,
    PLANNER,
    Builder,
    Built,
    Refused,
    best_per_placement,
    build,
    candidates,
    construct,
)

__all__ = [
    "METHODS",
    "PLANNER",
    "Builder",
    "Built",
    "Refused",
    "best_per_placement",
    "build",
    "candidates",
    "construct",
]
