"""Units: the numbers of a profile as integers, in ticks and memory units."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence
from decimal import Decimal
from typing import Any

import numpy as np

from zbplan.errors import Finding, InvalidInputError
from zbplan.evidence import TIMES
from zbplan.instance import IntArray
from zbplan.profile import Profile
from zbplan.scale import Scale, decimal, memory_scale, time_scale

MEMORY = ("m_b_bytes", "m_w_bytes", "m_peak_bytes", "m_static_bytes")
TOLERANCE = Decimal("1e-6")
"""Part of a time by which ticks may change it."""

Column = Sequence[float | list[float]]
"""A field of a canonical profile: per stage one number, or a list of one per microbatch."""


def clock_for(profile: Profile, microbatches: int, path: str) -> Scale:
    """Return the scale of a profile's times: the finest on which all of them, one after the other, can be counted.

    Raises
    ------
    InvalidInputError
        If that would change a time; ``path`` is where the profile stands.
    """
    scale = time_scale(_horizon_ms(profile, microbatches))
    for name, value in _times(profile):
        exact = decimal(value)
        if abs(decimal(scale.value(scale.units(value))) - exact) > TOLERANCE * exact:
            tick = f"1e{scale.exponent} ms"
            needed = f"a multiple of the tick of {tick} to within 1e-6 (the tick follows from the sum of all times)"
            raise InvalidInputError([Finding(f"{path}.{name}", repr(value), needed)])
    return scale


def memory_for(columns: Mapping[str, Any], limits: Iterable[float], microbatches: int) -> Scale:
    """Return the scale of the amounts of a canonical profile, and of memory limits beside them."""
    values = {value for name in MEMORY for entry in columns[name] for value in entries(entry)}
    largest = max(map(decimal, values))
    return memory_scale(values | set(limits), 4 * largest * len(columns["m_b_bytes"]) * microbatches)


def durations(columns: Mapping[str, Any], microbatches: int, clock: Scale) -> IntArray:
    """Return the ticks of each op by kind: int64[4, stages, microbatches]."""
    found = np.zeros((len(TIMES), len(columns[TIMES[0]]), microbatches), dtype=np.int64)
    for kind, name in enumerate(TIMES):
        for stage, entry in enumerate(columns[name]):
            found[kind, stage] = clock.many(entries(entry))
    return found


def held(column: Column, microbatches: int, memory: Scale) -> IntArray:
    """Return an amount of each stage and microbatch, rounded up: int64[stages, microbatches]."""
    found = np.zeros((len(column), microbatches), dtype=np.int64)
    for stage, entry in enumerate(column):
        found[stage] = [memory.ceil(value) for value in entries(entry)]
    return found


def memory_changes(m_b: IntArray, m_w: IntArray) -> tuple[IntArray, IntArray]:
    """Return what ops take when they start and give back when they end, by kind: int64[4, stages, microbatches]."""
    none = np.zeros_like(m_b)
    hold = np.stack([m_b, np.maximum(m_w - m_b, 0), none, none])
    release = np.stack([none, np.maximum(m_b - m_w, 0), m_w, m_b])
    return hold, release


def entries(entry: float | list[float]) -> list[float]:
    """Return the numbers of a stage."""
    return entry if isinstance(entry, list) else [entry]


def _horizon_ms(profile: Profile, microbatches: int) -> Decimal:
    total = Decimal(1)
    for name in TIMES:
        for entry in profile.per_stage(name):
            total += sum(map(decimal, entry)) if isinstance(entry, list) else decimal(entry) * microbatches
    comm = profile.comm()
    return total + microbatches * sum(map(decimal, [*comm.forward, *comm.backward]))


def _times(profile: Profile) -> Iterator[tuple[str, float]]:
    for name in TIMES:
        for stage, entry in enumerate(profile.per_stage(name)):
            for value in entries(entry):
                yield f"{name}[{stage}]", value
    comm = profile.comm()
    for name, values in (("forward", comm.forward), ("backward", comm.backward)):
        for value in set(values):
            yield f"t_comm_ms.{name}", value
