"""Numba where it is installed, plain Python where it is not (a training job installs no compiler)."""

from __future__ import annotations

from collections.abc import Callable
from importlib.util import find_spec
from typing import Any, TypeVar, cast

Function = TypeVar("Function", bound=Callable[..., Any])

COMPILED = find_spec("numba") is not None
"""Whether kernels run compiled."""


def kernel(function: Function) -> Function:
    """Compile a function of integers and arrays once and keep the machine code on disk, if there is a place for it."""
    return _compiled(function)


def lean(function: Function) -> Function:
    """Compile a function that makes no arrays: counting who uses those it is given would take most of its time."""
    return _compiled(function, _nrt=False)


def inlined(function: Function) -> Function:
    """Compile a function into every kernel that calls it: passing many arrays between kernels costs time."""
    if not COMPILED:
        return function
    import numba

    return cast(Function, numba.njit(inline="always")(function))


def _compiled(function: Function, **options: Any) -> Function:
    if not COMPILED:
        return function
    import numba

    try:
        return cast(Function, numba.njit(cache=True, **options)(function))
    except RuntimeError:
        # Numba found no folder to write to, as in a container that is read-only: each process compiles for itself.
        return cast(Function, numba.njit(**options)(function))
