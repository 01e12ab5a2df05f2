"""The time axis of an exact model: bounded integers, on which every op takes some time.

Times are divided by what they have in common, or by more where the objective would pass the horizon; they are then
rounded down. An op without duration is given one part of a unit, so that the starts of a device's ops always say in
which sequence they run.

Why bounds stay valid: take a legal schedule with objective T. Round its starts down to units, and move each op by one
part for every op without duration that comes before it. The result satisfies the model, because rounding down keeps
every wait, ⌊x + d⌋ ≥ ⌊x⌋ + ⌊d⌋. Its objective is at most ⌈T / unit⌉ units and as many parts as there are ops without
duration, which are fewer than the parts of a unit. So a model that proves L parts proves ⌈T / unit⌉ ≥ ⌈(L − those) /
parts⌉, hence T above one unit less; or just as much where nothing was rounded, T then being whole units.
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from functools import cached_property
from math import ceil, gcd

import numpy as np

from zbplan.instance import Instance, IntArray

MAX_HORIZON = 1 << 30
"""Units on the axis at most: a billionth is far finer than what counts as proven."""

FRACTION = 60
"""By how much units are finer at most where objectives may be means of paths."""


@dataclass(frozen=True, eq=False)
class Axis:
    """The conversion between ticks and a model's time.

    Parameters
    ----------
    instance
        In ticks.
    longest
        Ticks that the objective takes at most.
    horizon
        Units that it takes at most, about.
    """

    instance: Instance
    longest: int
    horizon: int = MAX_HORIZON

    @cached_property
    def _times(self) -> IntArray:
        instance = self.instance
        return np.concatenate([instance.duration.ravel(), instance.forward_lag, instance.backward_lag])

    @cached_property
    def _common(self) -> int:
        """The most ticks of which all times are multiples."""
        return max(1, int(np.gcd.reduce(self._times)))

    @cached_property
    def _paths(self) -> int:
        """Of how many paths an objective may be the mean."""
        return self.instance.devices if self.instance.post_validated else 1

    @cached_property
    def unit(self) -> int:
        """Ticks per unit."""
        finest = self._common // gcd(self._common, FRACTION) if self._paths > 1 else self._common
        return finest * max(1, -(-self.longest // (finest * self.horizon)))

    @cached_property
    def exact(self) -> bool:
        """Whether no time is rounded."""
        return not (self._times % self.unit).any()

    @cached_property
    def _without_duration(self) -> int:
        return int((self.instance.duration // self.unit == 0).sum())

    @cached_property
    def parts(self) -> int:
        """Parts of a unit."""
        return 1 + self._without_duration

    @cached_property
    def scaled(self) -> Instance:
        """The instance with its times in parts."""
        instance = self.instance
        return replace(
            instance,
            duration=np.maximum(1, self._scale(instance.duration)),
            forward_lag=self._scale(instance.forward_lag),
            backward_lag=self._scale(instance.backward_lag),
        )

    def _scale(self, times: IntArray) -> IntArray:
        return times // self.unit * self.parts

    def cut(self, bound: int) -> int:
        """Return the parts below which the objective cannot be, given a bound in ticks."""
        return -(-bound // self.unit) * self.parts if self.exact else bound // self.unit * self.parts

    def bound(self, proven: float) -> int:
        """Return the ticks below which the objective cannot be, given the parts that a model proved."""
        units = -(-(ceil(proven - 1e-6) - self._without_duration) // self.parts)
        above = (units - 1) * self.unit
        return max(0, self._least_mean(above) if self.exact else above)

    def _least_mean(self, above: int) -> int:
        """Return the least ticks above some that are a mean of paths, rounded up to a tick."""
        common = self._common
        return min(-(-(above * count // common + 1) * common // count) for count in range(1, self._paths + 1))
