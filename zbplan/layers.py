"""Layers: a profile per model layer, from which the profile of any contiguous cut in stages is summed."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from decimal import Decimal
from itertools import pairwise
from typing import Annotated, Any, Self

from pydantic import Field, model_validator

from zbplan.amount import MAX_STAGES, OneOrEach, Splittable
from zbplan.errors import Finding, InvalidInputError
from zbplan.evidence import Statistics
from zbplan.record import Record, refuse
from zbplan.scale import decimal

SUMMED = ("t_f_ms", "t_b_ms", "t_w_ms", "m_w_bytes", "m_static_bytes")
PER_LAYER = (*SUMMED, "t_bw_ms", "m_b_bytes", "m_peak_bytes", "boundary_bytes")


class Layers(Record):
    """The fields of a profile for every layer, each measured as a stage of its own.

    A field is one number (all layers alike) or a list of one number per layer.

    Attributes
    ----------
    count
        Number of layers, in forward order.
    boundary_bytes
        One forward transfer from a layer to the next, were they on two devices.
    statistics
        What stands behind the times.
    """

    count: Annotated[int, Field(ge=1, le=MAX_STAGES)]
    t_f_ms: OneOrEach
    t_b_ms: OneOrEach
    t_w_ms: OneOrEach
    t_bw_ms: OneOrEach | None = None
    splittable: Splittable = True
    m_b_bytes: OneOrEach
    m_w_bytes: OneOrEach
    m_static_bytes: OneOrEach = 0.0
    m_peak_bytes: OneOrEach = 0.0
    boundary_bytes: OneOrEach = 0.0
    statistics: Statistics | None = None

    @model_validator(mode="after")
    def _lengths(self) -> Self:
        refuse(self._wrong_lengths())
        return self

    def _wrong_lengths(self) -> Iterator[Finding]:
        for name in (*PER_LAYER, "splittable"):
            value = getattr(self, name)
            if isinstance(value, list) and len(value) != self.count:
                yield Finding(f".{name}", f"{len(value)} entries", f"{self.count}, one per layer")
        if self.statistics is not None:
            for finding in self.statistics.wrong_lengths(self.count):
                yield Finding(f".statistics{finding.path}", finding.found, f"{finding.needed}, by layers")

    def per_layer(self, name: str) -> list[float]:
        """Return a field with one entry per layer; ``t_bw_ms`` that was not measured is T_B + T_W."""
        value = getattr(self, name)
        if value is None:
            pairs = zip(self.per_layer("t_b_ms"), self.per_layer("t_w_ms"), strict=True)
            return [_total(pair) for pair in pairs]
        return [entry + 0.0 for entry in value] if isinstance(value, list) else [value + 0.0] * self.count

    def canonical(self) -> dict[str, Any]:
        """Return the JSON value that equal layers share: defaults filled in, arrays expanded, no evidence."""
        columns = {name: self.per_layer(name) for name in PER_LAYER}
        return {"count": self.count, "splittable": self.splits(), **columns}

    def cut(self, starts: Sequence[int]) -> dict[str, Any]:
        """Return the fields of a profile, without T_comm, of a cut in stages.

        Times, M_W and static bytes add up. M_B adds up but for the tensors between two layers of a stage, which
        each of the two holds when it stands alone; it errs high for a layer that needs its input in no backward. What
        ops use inside is that of the worst layer.

        Parameters
        ----------
        starts
            The first layer of each stage: 0, then ever larger.

        Raises
        ------
        InvalidInputError
            When ``starts`` is no cut of these layers.
        """
        stages = [range(first, last) for first, last in pairwise([*self._checked(starts), self.count])]
        boundary, held = self.per_layer("boundary_bytes"), self.per_layer("m_b_bytes")
        peak, splits = self.per_layer("m_peak_bytes"), self.splits()
        fields: dict[str, Any] = {name: _sums(self.per_layer(name), stages) for name in SUMMED}
        if self.t_bw_ms is not None:
            fields["t_bw_ms"] = _sums(self.per_layer("t_bw_ms"), stages)
        shared = [decimal(_total(boundary[stage.start : stage.stop - 1])) for stage in stages]
        fields["m_b_bytes"] = [
            float(max(decimal(total) - twice, Decimal(0)))
            for total, twice in zip(_sums(held, stages), shared, strict=True)
        ]
        fields["m_peak_bytes"] = [max(peak[layer] for layer in stage) for stage in stages]
        fields["boundary_bytes"] = [boundary[stage.stop - 1] for stage in stages]
        fields["splittable"] = [all(splits[layer] for layer in stage) for stage in stages]
        return {"stages": len(stages), **fields}

    def splits(self) -> list[bool]:
        """Return, per layer, whether B and W may run apart."""
        return self.splittable if isinstance(self.splittable, list) else [self.splittable] * self.count

    def _checked(self, starts: Sequence[int]) -> list[int]:
        whole = [*starts, self.count]
        if whole[0] != 0 or any(first >= last for first, last in pairwise(whole)):
            needed = f"0, then larger layers below {self.count}, one per stage"
            raise InvalidInputError([Finding("$.starts", str(list(starts)), needed)])
        return list(starts)


def even_starts(count: int, stages: int) -> list[int]:
    """Return the first layer of each stage of a cut in as equal numbers of layers as possible, longer stages first.

    Raises
    ------
    InvalidInputError
        When there are more stages than layers.
    """
    if not 1 <= stages <= count:
        raise InvalidInputError([Finding("$.stages", str(stages), f"1 to {count}, a layer or more each")])
    return [-(-stage * count // stages) for stage in range(stages)]


def shorter_ends(count: int, stages: int) -> list[int] | None:
    """Return the even cut with one layer fewer in the first and in the last stage (paper, section 5.1).

    None where a stage would be left without layers.
    """
    starts = [0, *(start - 1 for start in even_starts(count + 2, stages)[1:])]
    return starts if all(first < last for first, last in pairwise([*starts, count])) else None


def _total(values: Sequence[float]) -> float:
    return float(sum(map(decimal, values), Decimal(0)))


def _sums(values: Sequence[float], stages: Sequence[range]) -> list[float]:
    return [_total(values[stage.start : stage.stop]) for stage in stages]
