"""Outcome: what an exact solver claims once it has ended."""

from __future__ import annotations

from dataclasses import dataclass

from zbplan.instance import Orders


@dataclass(frozen=True)
class Outcome:
    """What a solver claims; nothing of it is trusted until it is simulated and judged.

    Attributes
    ----------
    orders
        The best orders found, if any.
    bound
        Ticks below which it claims that the objective cannot be.
    status
        Its own word for how it ended; PuLP says "Optimal" too often.
    """

    orders: Orders | None
    bound: int
    status: str
