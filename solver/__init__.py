"""The best plan that can be found, and a proof of how far from optimal it can be."""

from solver.bounds import LowerBound, lower_bound
from solver.comparison import compare
from solver.solve import Options, solve

__all__ = ["LowerBound", "Options", "compare", "lower_bound", "solve"]
