"""Amounts: the numbers of a profile, each a finite time or size that is not negative, and their columns."""

from __future__ import annotations

from typing import Annotated

from pydantic import Discriminator, Field, Tag

from zbplan.record import BRANCH, branch

MAX_STAGES = 1 << 14
MAX_MICROBATCHES = 1 << 16

MOST = 1e30
"""The largest amount, so that all sums and multiples of amounts are floats."""

Amount = Annotated[float, Field(ge=0, le=MOST)]
PerMicrobatch = Annotated[list[Amount], Field(min_length=1, max_length=MAX_MICROBATCHES)]


def _shape(value: object) -> str:
    return "list" if isinstance(value, list) else "number"


_one_or_per_microbatch = Annotated[
    Annotated[Amount, Tag(f"{BRANCH}number")] | Annotated[PerMicrobatch, Tag(f"{BRANCH}list")],
    Discriminator(branch(_shape)),
]
Measured = Annotated[
    Annotated[Amount, Tag(f"{BRANCH}number")]
    | Annotated[list[_one_or_per_microbatch], Field(max_length=MAX_STAGES), Tag(f"{BRANCH}list")],
    Discriminator(branch(_shape)),
]
"""One number, a list of one number per stage, or a list per stage of one number per microbatch."""

OneOrEach = Annotated[
    Annotated[Amount, Tag(f"{BRANCH}number")]
    | Annotated[list[Amount], Field(max_length=MAX_STAGES), Tag(f"{BRANCH}list")],
    Discriminator(branch(_shape)),
]
"""One number, or a list of one number each."""

Splittable = Annotated[
    Annotated[bool, Tag(f"{BRANCH}bool")] | Annotated[list[bool], Field(max_length=MAX_STAGES), Tag(f"{BRANCH}list")],
    Discriminator(branch(lambda value: "list" if isinstance(value, list) else "bool")),
]
