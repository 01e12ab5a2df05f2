"""Improve: better orders at any size, by neighbourhoods of the whole schedule and of a shorter one that is unrolled.

*Windows.* Again and again the ops within some stretch of time around a critical op, on some devices, are put in the
best sequence (``neighbourhood``). How long the stretch is follows from how hard the last ones were.

*Blocks.* Where microbatches are equal, a shorter schedule is made of the incumbent by leaving a block out; windows
improve that, with its ramps and all that repeats in between within reach; then it is unrolled (``unroll``).

Random choices have a seed and the effort on a window is counted in CP-SAT's deterministic time: only how far the
search comes depends on the clock.
"""

from __future__ import annotations

import random
from collections.abc import Iterator

from solver.device_ops import DeviceOps
from solver.neighbourhood import Neighbourhood, Timed
from solver.unroll import Pattern, applies, folded, in_sequence, shortened
from zbplan.errors import DeadlockError
from zbplan.instance import Instance, Orders
from zbplan.stop import Stop

WINDOW_EFFORT = 0.3
"""CP-SAT's deterministic time for one window, about seconds."""

FIRST_OPS, FEWEST_OPS, MOST_OPS = 140.0, 40.0, 1200.0
"""Ops in a window, at first and at the limits."""

GROWTH = 1.02
"""By how much windows grow where they turn out to be easy, and shrink where they are hard."""

NARROWEST = 2
"""Devices that may change their sequence in a window, at least."""

RAMPS = 3
"""Microbatches of a shorter schedule, per device."""

FOLD = 12
"""What is left out for it is a multiple of this, so that blocks of many sizes make up for it."""

SHORT = 2000
"""Ops up to which windows reach all of a schedule anyway."""

PATIENCE = 60
"""Windows without a gain after which a shorter schedule is given up."""


def improve(instance: Instance, incumbent: Orders, *, bound: int, stop: Stop, half: Stop) -> Iterator[Orders]:
    """Yield orders, each better than all before, until one meets a bound or it is time to stop.

    Parameters
    ----------
    incumbent
        Legal orders to start from.
    bound
        Ticks below which the objective cannot be.
    stop, half
        Asked between windows whether the time, and whether half of it, is over.
    """
    if DeviceOps(instance).equal_microbatches:
        incumbent = in_sequence(instance, incumbent)
    best = Timed(instance, incumbent)
    for orders in _by_blocks(best, half):
        timed = Timed(instance, orders)
        if timed.objective < best.objective:
            best = timed
            yield orders
    windows = Windows(best, seed=1)
    for timed in windows.run(lambda: stop() or windows.timed.objective <= bound):
        if timed.objective < best.objective:
            best = timed
            yield timed.orders


def _by_blocks(best: Timed, stop: Stop) -> Iterator[Orders]:
    """Yield what shorter schedules unroll to, as they get better."""
    instance = best.instance
    least = RAMPS * instance.devices
    few = instance.microbatches - (instance.microbatches - least) // FOLD * FOLD
    if few >= instance.microbatches or len(best.orders.ops) <= SHORT or not applies(instance):
        return
    short = shortened(instance, few)
    start = folded(instance, best.orders, short)
    if start is None:
        return
    windows = Windows(Timed(short, start), seed=2)
    for _ in windows.run(lambda: stop() or windows.quiet >= PATIENCE):
        if windows.quiet:
            continue
        unrolled = Pattern(short, windows.timed.orders).unrolled(instance)
        if unrolled is not None:
            yield unrolled


class Windows:
    """A descent by windows from one schedule.

    Parameters
    ----------
    start
        Where it starts.
    seed
        Of which windows come.

    Attributes
    ----------
    quiet
        Windows since the last gain.
    """

    def __init__(self, start: Timed, seed: int) -> None:
        self.timed = start
        self.quiet = 0
        self._ops = FIRST_OPS
        self._random = random.Random(seed)  # noqa: S311

    def run(self, stop: Stop) -> Iterator[Timed]:
        """Yield schedules that are no worse than the one before, with less to wait for on some device."""
        while not stop():
            self.quiet += 1
            timed = self._next()
            if timed is not None:
                self.quiet = 0 if timed.objective < self.timed.objective else self.quiet
                self.timed = timed
                yield timed

    def _next(self) -> Timed | None:
        window = self._window()
        orders = window.improved(WINDOW_EFFORT)
        self._ops = min(MOST_OPS, max(FEWEST_OPS, self._ops * GROWTH if window.settled else self._ops / GROWTH))
        return None if orders is None else self._judged(orders)

    def _judged(self, orders: Orders) -> Timed | None:
        """Return what the orders come to if that is no worse."""
        try:
            timed = Timed(self.timed.instance, orders)
            return timed if timed.objective <= self.timed.objective else None
        except DeadlockError:
            return None

    def _window(self) -> Neighbourhood:
        """Draw a critical op, devices around its own, and a stretch around it with as many ops as are in reach."""
        timed, draw = self.timed, self._random
        at = draw.choice(timed.critical.tolist())
        devices = timed.instance.devices
        count = draw.choice([devices, max(min(NARROWEST, devices), draw.randrange(devices) + 1)])
        first = min(max(0, int(timed.device[at]) - draw.randrange(count)), devices - count)
        length = int(timed.objective * self._ops / len(timed.orders.ops) * devices / count)
        begin = int(timed.start[at]) - int(length * draw.random())
        return Neighbourhood(timed, begin, begin + length, range(first, first + count))
