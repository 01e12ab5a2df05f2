"""Exact conversion between JSON numbers (milliseconds, bytes) and the integers that zbplan computes with."""

from __future__ import annotations

import math
from collections.abc import Iterable
from dataclasses import dataclass
from decimal import ROUND_CEILING, ROUND_FLOOR, ROUND_HALF_EVEN, Decimal

import numpy as np
import numpy.typing as npt

NANOSECOND_EXPONENT = -6
"""A tick is 1 ns = 1e-6 ms unless the horizon asks for coarser ticks."""

TIME_HORIZON = 1 << 52
"""Ticks up to which every tick is a float64 of its own in milliseconds, too, whatever power of ten a tick is."""

MEMORY_HORIZON = 1 << 61
"""Memory units that a sum over one device may reach inside an int64."""

_EXACT_FLOAT = 1 << 50


def decimal(value: float) -> Decimal:
    """Return the number that a JSON text with this float says: the shortest decimal that reads back as it."""
    return Decimal(repr(value))


@dataclass(frozen=True)
class Scale:
    """One integer unit is ``10 ** exponent`` of the JSON unit.

    Attributes
    ----------
    exponent
        Power of ten; -6 makes a time unit 1 ns, 0 makes a memory unit one byte.
    """

    exponent: int

    def units(self, value: float, rounding: str = ROUND_HALF_EVEN) -> int:
        """Convert a JSON number to integer units."""
        return int(decimal(value).scaleb(-self.exponent).to_integral_value(rounding))

    def ceil(self, value: float) -> int:
        """Convert a JSON number to integer units, never below it."""
        return self.units(value, ROUND_CEILING)

    def floor(self, value: float | Decimal) -> int:
        """Convert a JSON number to integer units, never above it."""
        exact = value if isinstance(value, Decimal) else decimal(value)
        return int(exact.scaleb(-self.exponent).to_integral_value(ROUND_FLOOR))

    def not_below(self, units: Decimal) -> float:
        """Convert a number of units to the least JSON number that is not below it."""
        exact = units.scaleb(self.exponent)
        nearest = float(exact)
        return nearest if decimal(nearest) >= exact else math.nextafter(nearest, math.inf)

    def value(self, units: int) -> float:
        """Convert integer units to the nearest JSON number."""
        units = int(units)
        return units / 10**-self.exponent if self.exponent < 0 else float(units * 10**self.exponent)

    def values(self, units: npt.NDArray[np.int64]) -> list[float]:
        """Convert many integers below 2^53 at once; equal to ``value`` on each."""
        if self.exponent < 0:
            return (units / float(10**-self.exponent)).tolist()  # type: ignore[no-any-return]
        return [self.value(unit) for unit in units.tolist()]

    def many(self, values: Iterable[float]) -> npt.NDArray[np.int64]:
        """Convert many JSON numbers at once; equal to ``units`` on each."""
        numbers = np.asarray(list(values), dtype=np.float64)
        scaled = numbers * float(10**-self.exponent) if self.exponent < 0 else numbers / float(10**self.exponent)
        if scaled.size and np.abs(scaled).max() > _EXACT_FLOAT:
            return np.array([self.units(number) for number in numbers.tolist()], dtype=np.int64)
        return np.rint(scaled).astype(np.int64)


def time_scale(horizon_ms: Decimal) -> Scale:
    """Return the finest scale, 1 ns or coarser, on which a horizon stays below 2^52 ticks."""
    exponent = NANOSECOND_EXPONENT
    while horizon_ms.scaleb(-exponent) >= TIME_HORIZON:
        exponent += 1
    return Scale(exponent)


def memory_scale(values: Iterable[float], total_bytes: Decimal) -> Scale:
    """Return the scale on which all values are integers, or the finest on which their total fits.

    Where the values have more digits than an int64 can add up, the caller rounds what is held up and what may be
    held down, so that a plan that fits in units fits in bytes.
    """
    exponent = min((int(decimal(value).normalize().as_tuple().exponent) for value in values), default=0)
    exponent = min(exponent, 0)
    while total_bytes.scaleb(-exponent) >= MEMORY_HORIZON:
        exponent += 1
    return Scale(exponent)
