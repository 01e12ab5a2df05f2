"""What torch before 2.13 cannot do, for the tests that ask for it."""

from __future__ import annotations

from collections.abc import Sequence

import pytest
import torch
from torch.distributed.pipelining import PipelineStage

from profiler.backward import NATIVE_SINCE

needs_native_split = pytest.mark.skipif(
    torch.__version__ < NATIVE_SINCE, reason="torch counts weights twice in its own split before 2.13: refused"
)


def without_greetings(stages: Sequence[PipelineStage]) -> Sequence[PipelineStage]:
    """Return stages that torch's own schedules run even where one rank holds neighbours.

    torch 2.11 begins with a message to the rank of the next stage, which gloo has no connection for on the same rank.
    """
    for stage in stages:
        stage._get_init_p2p_neighbors_ops = list
    return stages
