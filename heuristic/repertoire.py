"""The repertoire: rules of list schedules that do well on many problems, in the measure of any instance.

They were chosen among some thousand drawn ones, one after the other: each is the one that makes the best known
schedules of a hundred random problems and more shorter by most. So the first few do for most problems, and the rest
help with what is special. Many of them send microbatches in groups, which a device that waits for gradients takes in
one go.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import NamedTuple

import numpy as np

from heuristic.list_schedule import NEVER, Policy
from heuristic.variation import Variation
from zbplan.instance import B, F, IntArray

ANY = float("inf")
"""A slack or backlog without end."""

AS_HELD = 0
"""A group as large as the device with the least memory holds microbatches."""


class Rule(NamedTuple):
    """A policy in periods (``Variation.period``).

    Attributes
    ----------
    step, size, follow
        How microbatches follow each other in the keys: from group to group, per microbatch of it; how many are a
        group; from one to the next of a group, as a part of ``step``. With no step, keys are no times: B goes before
        F, and a later stage before an earlier one.
    shift, wait
        How long a microbatch waits in the keys at its turn from F to B, and from one chunk of the devices to the next.
    slack, patience, gap, backlog
        As of ``Policy``; gap is its ``weight_gap``.
    """

    patience: float = 0.0
    gap: float = 1.0
    backlog: float = ANY
    step: float = 0.0
    size: int = 1
    follow: float = 1.0
    shift: float = 0.0
    wait: float = 0.0
    slack: tuple[float, float, float] = (ANY, ANY, ANY)


ONE_CHUNK = (
    Rule(patience=0.05, gap=0.5, step=1.06, size=2, follow=0.7, slack=(ANY, ANY, 0.5)),
    Rule(patience=0.3),
    Rule(patience=0.1, gap=0.8, backlog=4, step=1.2, slack=(2, 0.15, 0)),
    Rule(patience=0.15, step=0.85, slack=(2, 0.5, ANY)),
    Rule(patience=0.2, step=1.1, size=AS_HELD, follow=0.85, slack=(ANY, 0, ANY)),
    Rule(patience=0.15, gap=0.8, backlog=4, step=1.5, shift=-0.5, slack=(2, 0.15, 0.5)),
    Rule(patience=0.14),
    Rule(patience=0.06, gap=0.2),
    Rule(patience=0.05, step=1.0, size=4, slack=(ANY, 0.3, 0)),
    Rule(patience=0.1, gap=0.5),
    Rule(backlog=4, step=1.15, shift=0.5, slack=(0.3, 0.3, 0.5)),
    Rule(gap=0.5, step=0.9, size=AS_HELD, shift=0.5, slack=(0.3, 0.15, 0.5)),
    Rule(patience=0.05, step=0.9, slack=(2, 0.3, 0)),
    Rule(patience=0.2, gap=0.5, step=1.03, slack=(2, 0.5, 0)),
    Rule(step=0.85, shift=0.5, slack=(2, 0.3, ANY)),
    Rule(patience=0.1, gap=0.5, backlog=2, step=1.3, shift=0.5, slack=(2, 0, ANY)),
    Rule(patience=0.15, gap=0.5, backlog=2, step=1.25, size=4, follow=0.85, shift=-0.5, slack=(ANY, 1, 0)),
    Rule(patience=0.15, backlog=4, step=0.95, size=2, follow=0.5, slack=(ANY, 0.5, 0)),
    Rule(gap=0.8, step=1.06, slack=(2, 1, 0.5)),
    Rule(gap=0.2),
    Rule(patience=0.05, gap=0.5, backlog=4, step=1.06, size=6, follow=0.85, slack=(0.3, 0.15, 0.5)),
    Rule(patience=0.15, gap=0.8, step=0.85, shift=-0.5, slack=(2, 1, 0)),
    Rule(patience=0.2, step=0.85, size=3, follow=0.7, slack=(2, 1, 0.5)),
    Rule(patience=0.1, gap=0.2),
)
"""For one stage per device."""

SEVERAL_CHUNKS = (
    Rule(patience=0.1, gap=0.5, step=1.2, size=AS_HELD, follow=0.85, shift=0.5, wait=0.1, slack=(2, ANY, ANY)),
    Rule(step=1.5, wait=0.1, slack=(2, 1, ANY)),
    Rule(gap=0.3, step=1.4, size=AS_HELD, follow=0.5, shift=-0.5, slack=(2, ANY, ANY)),
    Rule(patience=0.06, gap=0.5),
    Rule(gap=0.5, backlog=4, step=1.5, size=3, follow=0.7, slack=(2, 0.15, ANY)),
    Rule(patience=0.05, gap=0.8, step=1.15, size=AS_HELD, follow=0.85, wait=0.2, slack=(2, 1, ANY)),
    Rule(patience=0.05, gap=0.5, step=0.9, shift=0.5, slack=(2, 1, ANY)),
    Rule(patience=0.2, backlog=4, step=1.5, size=2, follow=0.5, slack=(0.3, ANY, 0)),
    Rule(patience=0.05, gap=0.8, backlog=2, step=1.5, size=2, follow=0.5, shift=-0.5, wait=0.1, slack=(0, 0.5, 0.5)),
    Rule(patience=0.1, step=1.5, size=AS_HELD, follow=0.3, shift=-0.5, wait=0.2, slack=(0, ANY, 0.5)),
    Rule(patience=0.05, gap=0.5, step=1.3, size=AS_HELD, follow=0.85, shift=0.5, wait=0.1, slack=(0, 0.5, 0)),
    Rule(gap=0.8, step=0.9, wait=1, slack=(2, ANY, ANY)),
    Rule(patience=0.05, gap=0.8, step=1.1, size=AS_HELD, follow=0.7, shift=0.5, wait=0.2, slack=(2, 1, ANY)),
    Rule(patience=0.05, gap=0.5, step=1.05, shift=0.25, slack=(0.3, 0.3, 0.5)),
    Rule(patience=0.05, gap=0.5, backlog=4, step=1.4, shift=0.5, wait=0.1, slack=(0.3, 0.5, ANY)),
    Rule(step=1.0, size=AS_HELD, follow=0.3, slack=(0, 0.3, 0)),
    Rule(patience=0.14, gap=0.5),
    Rule(patience=0.05, gap=0.5, step=0.85, shift=0.25, wait=0.4, slack=(2, 0.5, 0)),
    Rule(patience=0.1, gap=0.5, step=0.85, size=2, follow=0.85, shift=0.5, wait=1, slack=(2, ANY, 0.5)),
    Rule(backlog=4, step=1.25, size=2, follow=0.5, slack=(0, 0.3, ANY)),
    Rule(patience=0.05, step=1.3, slack=(0.3, 0.15, 0)),
    Rule(patience=0.1, gap=0.5, step=1.5, size=4, follow=0.5, shift=-0.5, wait=0.4, slack=(0, 0.5, ANY)),
    Rule(patience=0.05, gap=0.5, step=1.1, size=AS_HELD, follow=0.3, slack=(2, 1, 0)),
    Rule(patience=0.05, gap=0.8, backlog=4, step=1.2, shift=0.5, wait=0.4, slack=(2, 0.5, ANY)),
    Rule(gap=0.5, step=0.85, size=AS_HELD, follow=0.5, shift=0.25, wait=1.0, slack=(0.3, ANY, 0.5)),
    Rule(patience=0.1, step=1.0, size=3, follow=0.5, shift=0.5, slack=(2, ANY, ANY)),
    Rule(patience=0.15, gap=0.8, step=1.4, size=2, follow=0.5, slack=(0, 0.3, 0.5)),
    Rule(gap=0.8, backlog=4, step=1.25, size=2, follow=0.85, shift=0.25, wait=0.1, slack=(2, 1, ANY)),
)
"""For several."""


def repertoire(variation: Variation) -> Iterator[Policy]:
    """Yield the policies of all rules for an instance, those first that are good most often."""
    for rule in SEVERAL_CHUNKS if variation.chunk.any() else ONE_CHUNK:
        yield _policy(variation, rule)


def _policy(variation: Variation, rule: Rule) -> Policy:
    plain, period = variation.plain(), variation.period
    return plain._replace(
        key=_key(variation, rule) if rule.step else plain.key,
        slack=np.array([NEVER if slack == ANY else int(slack * period) for slack in rule.slack]),
        patience=int(rule.patience * period),
        weight_gap=rule.gap,
        backlog=plain.backlog if rule.backlog == ANY else np.full_like(plain.backlog, int(rule.backlog)),
    )


def _key(variation: Variation, rule: Rule) -> IntArray:
    route = variation.route(_waits(variation, int(rule.wait * variation.period)), int(rule.shift * variation.period))
    step = int(rule.step * variation.period)
    size = max(1, int(variation.held.min())) if rule.size == AS_HELD else rule.size
    keys: IntArray = route[:, :, None] + variation.grouped(size, step, int(rule.follow * step))
    return keys


def _waits(variation: Variation, ticks: int) -> IntArray:
    """Return a wait at every edge that leads to a later chunk of a device, or back from it."""
    waits = np.zeros((2, len(variation.chunk)), dtype=np.int64)
    waits[[F, B], :-1] = ticks * (np.diff(variation.chunk) > 0)
    return waits
