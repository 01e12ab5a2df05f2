"""Plans from the wave that proves the bound, on linear placement.

The wave (``wave``) says how many F each device should run before its first backward op, if the bound is to be met. As
caps on what is in flight these counts make list schedules that are often optimal as they stand; which gap is worth a
W remains to be tried. After that grid, the best policy is changed a little at a time and kept if it is no worse.
"""

from __future__ import annotations

import random
from collections.abc import Iterator
from dataclasses import dataclass, replace
from itertools import count, product

import numpy as np

from heuristic.list_schedule import NEVER, Policy, list_schedule, task_of
from heuristic.wave import GAPS, wave_policy
from zbplan.instance import F, Instance, IntArray, Orders
from zbplan.simulate import measure, simulate

PATIENCES = (0.0, 0.4, 0.1, 0.2, 0.05, 0.02)
"""Parts of the median T_F for which a device waits for something better."""

BACKLOGS = (0, 1, 2, 3, 4, 6, 8, 1 << 30)

TOLERANCES = (0.0, 0.0, 0.0, 2e-4)
"""By how much a policy may be worse than the current one and still replace it; one is drawn per try."""


@dataclass(frozen=True, eq=False)
class _Choice:
    """The parts of a policy that are searched, named as there; one cap and one backlog per device."""

    before: IntArray
    after: IntArray
    gap: float
    patience: float
    backlog: IntArray


class WaveSearch:
    """The search on one instance with one stage per device.

    Parameters
    ----------
    counts
        How many F each stage runs before its first backward op.
    seed
        Of all random choices.
    """

    def __init__(self, instance: Instance, counts: IntArray, seed: int = 1) -> None:
        self.instance = instance
        self.counts = counts
        self._random = random.Random(seed)  # noqa: S311
        self._task = task_of(instance)
        self._median_forward = int(np.median(instance.duration[F]))

    def tries(self) -> Iterator[tuple[int, Orders]]:
        """Yield the objective and the orders of one policy after the other, without end."""
        current, lowest = self._first(), NEVER
        for choice in self._grid():
            objective, orders = self._schedule(choice)
            yield objective, orders
            if objective < lowest:
                current, lowest = choice, objective
        for _ in count():
            choice = self._changed(current)
            objective, orders = self._schedule(choice)
            yield objective, orders
            if objective <= lowest * (1 + self._random.choice(TOLERANCES)):
                current, lowest = choice, objective

    def _first(self) -> _Choice:
        unlimited = np.full(self.instance.devices, BACKLOGS[-1])
        return _Choice(self.counts, self.counts, GAPS[0], PATIENCES[0], unlimited)

    def _grid(self) -> Iterator[_Choice]:
        for patience, gap in product(PATIENCES, GAPS):
            yield replace(self._first(), gap=gap, patience=patience)

    def _schedule(self, choice: _Choice) -> tuple[int, Orders]:
        orders = list_schedule(self._task, self._policy(choice))
        return measure(self.instance, simulate(self.instance, orders)).iteration, orders

    def _policy(self, choice: _Choice) -> Policy:
        return wave_policy(self.instance, choice.before, choice.after)._replace(
            patience=int(choice.patience * self._median_forward),
            weight_gap=np.full(self.instance.devices, choice.gap),
            backlog=choice.backlog,
        )

    def _changed(self, choice: _Choice) -> _Choice:
        changes = (self._before, self._after, self._gap, self._patience, self._backlog)
        for change in self._random.choices(changes, weights=(6, 6, 3, 2, 3), k=self._random.choice((1, 1, 2))):
            choice = change(choice)
        return choice

    def _before(self, choice: _Choice) -> _Choice:
        return replace(choice, before=self._shifted(choice.before))

    def _after(self, choice: _Choice) -> _Choice:
        return replace(choice, after=self._shifted(choice.after))

    def _shifted(self, caps: IntArray) -> IntArray:
        caps = caps.copy()
        caps[self._devices()] += self._random.choice((-1, 1))
        return np.maximum(caps, 1)

    def _gap(self, choice: _Choice) -> _Choice:
        return replace(choice, gap=self._random.choice(GAPS))

    def _patience(self, choice: _Choice) -> _Choice:
        return replace(choice, patience=self._random.choice(PATIENCES))

    def _backlog(self, choice: _Choice) -> _Choice:
        backlog = choice.backlog.copy()
        backlog[self._devices()] = self._random.choice(BACKLOGS)
        return replace(choice, backlog=backlog)

    def _devices(self) -> slice:
        """Draw a range of devices."""
        first = self._random.randrange(self.instance.devices)
        return slice(first, first + 1 + self._random.choice((0, 1, 3, self.instance.devices)))
