"""The objective of orders, fast enough for a search."""

from __future__ import annotations

from collections.abc import Iterable

from zbplan.instance import Instance, Orders
from zbplan.simulate import measure, simulate
from zbplan.tighten import tighten


def iteration(instance: Instance, orders: Orders) -> int:
    """Return the objective in ticks with every op as early as possible: what ``tighten`` can only make shorter.

    Raises
    ------
    DeadlockError
        If the orders cannot run.
    """
    schedule = simulate(instance, orders)
    first, last = schedule.start[orders.offsets[:-1]], schedule.end[orders.offsets[1:] - 1]
    return int((last - first).max() if instance.post_validated else last.max() - first.min())


def at_best(instance: Instance, orders: Orders) -> int:
    """Return the objective in ticks at the best times for the orders: what a plan made of them takes.

    Raises
    ------
    DeadlockError
        If the orders cannot run.
    """
    return measure(instance, tighten(instance, orders)).iteration


def least(instance: Instance, candidates: Iterable[Orders]) -> Orders:
    """Return the orders with the least objective, the first ones of equals."""
    return min(candidates, key=lambda orders: iteration(instance, orders))
