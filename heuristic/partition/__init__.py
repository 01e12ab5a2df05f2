"""The cut of a model's layers in stages."""

from heuristic.partition.constructive import construct
from heuristic.partition.judge import Cut
from heuristic.partition.partition import Candidate, Partition, better_cuts, first_cuts, partition

__all__ = ["Candidate", "Cut", "Partition", "better_cuts", "construct", "first_cuts", "partition"]
