from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest

from zbplan.jit import Function, kernel, lean


@pytest.mark.parametrize("compiled", [kernel, lean])
def test_a_kernel_is_compiled_even_where_it_cannot_be_kept(compiled: Callable[[Function], Function]) -> None:
    names: dict[str, Any] = {}
    exec("def double(value):\n    return 2 * value", names)  # no file, thus no folder beside it
    double = compiled(names["double"])
    assert double(21) == 42
    assert len(double.signatures) == 1
