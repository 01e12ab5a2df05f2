from __future__ import annotations

import pytest

from heuristic import load_kernels


@pytest.fixture(scope="session", autouse=True)
def _kernels() -> None:
    """Compile them before the first test on a new machine, whichever that is: some tests solve within seconds."""
    load_kernels()
