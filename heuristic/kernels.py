"""Kernels: the compiled functions, made ready before a clock starts to run."""

from __future__ import annotations

from functools import cache

from heuristic.catalog import candidates
from zbplan.jit import COMPILED
from zbplan.problem import Problem


@cache
def load_kernels() -> None:
    """Load the compiled functions of a process: moments, or half a minute where they must first be compiled.

    They are kept on disk, so that this is once per installation where there is a place to keep them (numba's rules:
    next to the code, in the user's cache, or in ``NUMBA_CACHE_DIR``).
    """
    if not COMPILED:
        return
    profile = {"stages": 2, "t_f_ms": 1, "t_b_ms": 1, "t_w_ms": 1, "t_comm_ms": 0, "m_b_bytes": 1, "m_w_bytes": 1}
    candidates(Problem.parse({"profile": profile, "devices": 2, "microbatches": 2}))
