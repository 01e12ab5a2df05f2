"""Evidence: how sure a profile is of its numbers, as samples behind each time and as cross-checks."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import Annotated, Self

from pydantic import Field

from zbplan.amount import MAX_STAGES, Amount
from zbplan.duration import DIGITS, Duration
from zbplan.errors import Finding
from zbplan.record import Record

TIMES = ("t_f_ms", "t_b_ms", "t_w_ms", "t_bw_ms")
"""The times of a profile, in the sequence of ``zbplan.instance.KINDS``."""


class Samples(Record):
    """What stands behind a column of medians, one entry each.

    Attributes
    ----------
    spread_ms
        Median absolute deviation of the steady samples.
    count
        Number of steady samples; 0 where the op does not exist or was not measured.
    """

    spread_ms: Annotated[list[Amount], Field(max_length=MAX_STAGES)]
    count: Annotated[list[Annotated[int, Field(ge=0)]], Field(max_length=MAX_STAGES)]

    @classmethod
    def of(cls, durations: Sequence[Duration]) -> Self:
        """Return what stands behind durations."""
        spreads_ms = [round(duration.spread_ms, DIGITS) for duration in durations]
        return cls(spread_ms=spreads_ms, count=[duration.samples for duration in durations])


class TransferSamples(Record):
    """What stands behind T_comm per stage boundary and direction."""

    forward: Samples
    backward: Samples


class Statistics(Record):
    """What stands behind each measured time; null for one that was not measured. The medians are the profile's own."""

    t_f_ms: Samples | None = None
    t_b_ms: Samples | None = None
    t_w_ms: Samples | None = None
    t_bw_ms: Samples | None = None
    t_comm_ms: TransferSamples | None = None

    def wrong_lengths(self, entries: int) -> Iterator[Finding]:
        """Find columns that have not one entry per stage (or layer), or not one per boundary between them."""
        columns = [(name, getattr(self, name), entries) for name in TIMES]
        if self.t_comm_ms is not None:
            ways = (("forward", self.t_comm_ms.forward), ("backward", self.t_comm_ms.backward))
            columns += [(f"t_comm_ms.{way}", samples, entries - 1) for way, samples in ways]
        for name, samples, needed in columns:
            for part in ("spread_ms", "count") if samples is not None else ():
                found = len(getattr(samples, part))
                if found != needed:
                    yield Finding(f".{name}.{part}", f"{found} entries", f"{needed}")


class Check(Record):
    """A cross-check of measured numbers against each other.

    Attributes
    ----------
    name
        Which check, such as ``split_overhead``.
    stage
        The stage that it looked at; null for all together.
    found
        The ratio that it looked at.
    passed
        False where the numbers ask for a second look.
    text
        What was found and what it means.
    """

    name: Annotated[str, Field(max_length=100)]
    stage: Annotated[int, Field(ge=0, lt=MAX_STAGES)] | None = None
    found: float
    passed: bool
    text: Annotated[str, Field(max_length=1000)]
