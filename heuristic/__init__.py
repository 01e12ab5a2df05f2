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
    feasible_placements,
    legal_named,
)
from heuristic.flow import flows
from heuristic.kernels import load_kernels
from heuristic.partition import Candidate, Cut, Partition, better_cuts, construct, first_cuts, partition
from heuristic.planner import QUICK, THOROUGH, improvements

__all__ = [
    "METHODS",
    "PLANNER",
    "QUICK",
    "THOROUGH",
    "Builder",
    "Built",
    "Candidate",
    "Cut",
    "Partition",
    "Refused",
    "best_per_placement",
    "better_cuts",
    "build",
    "candidates",
    "construct",
    "feasible_placements",
    "first_cuts",
    "flows",
    "improvements",
    "legal_named",
    "load_kernels",
    "partition",
]
