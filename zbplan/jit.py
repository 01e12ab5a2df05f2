"""Numba where it is installed, plain Python where it is not (a training job installs no compiler)."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, TypeVar

Function = TypeVar("Function", bound=Callable[..., Any])

try:
    import numba
except ModuleNotFoundError:
    numba = None

COMPILED = numba is not None
"""Whether kernels run compiled."""


def kernel(function: Function) -> Function:
    """Compile a function of integers and arrays once and keep the machine code on disk."""
    if numba is None:
        return function
    return numba.njit(cache=True)(function)  # type: ignore[no-any-return]
