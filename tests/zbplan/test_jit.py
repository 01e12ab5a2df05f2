from __future__ import annotations

from typing import Any

from zbplan.jit import kernel


def test_a_kernel_is_compiled_even_where_it_cannot_be_kept() -> None:
    names: dict[str, Any] = {}
    exec("def double(value):\n    return 2 * value", names)  # no file, thus no folder beside it
    double = kernel(names["double"])
    assert double(21) == 42
    assert len(double.signatures) == 1
