"""Balance: cuts whose busiest device works little, within memory where that can be.

What the busiest device works on all microbatches is the largest part of every iteration, and known in microseconds.
On linear placement dynamic programming finds the best cut; on others, where the stages of a device lie apart, descents
from many cuts do.
"""

from __future__ import annotations

import random
from collections.abc import Sequence

import numpy as np

from heuristic.partition.exhaustive import count_of_cuts, every_cut
from heuristic.partition.weights import FloatArray, Weights
from zbplan.instance import IntArray
from zbplan.stop import Stop, never

FEW = 1000
"""Cuts up to which all are compared."""

SHAKES = 60
"""Descents from shaken cuts."""

MANY = 32
"""Stages beyond which not every stage is asked to give up a layer."""

PARTS = 1 << 24
"""Parts of all work in which devices are compared."""

EFFORT = 1_000_000
"""Stages to look at in all these descents together, about."""


def balanced(weights: Weights, ramps: Sequence[float], *, hurry: Stop = never) -> list[IntArray]:
    """Return cuts with the least memory missing, then the least work on the busiest device, that are found.

    Parameters
    ----------
    ramps
        How many times the largest stage counts as work of the busiest device, in a cut each: uneven stages make a plan
        wait. Descents start by the first one.
    hurry
        Asked between steps whether to make do with what is there.
    """
    if count_of_cuts(weights.layers, weights.stages) <= FEW:
        return [_best(weights, every_cut(weights.layers, weights.stages), ramp) for ramp in ramps]
    found = [least_busy(weights)] if weights.stages == weights.devices else _descents(weights, ramps[0], hurry)
    return [descend(weights, _best(weights, found, ramp), ramp, hurry=hurry) for ramp in ramps]


def _descents(weights: Weights, ramp: float, hurry: Stop) -> list[IntArray]:
    """Return where descents end from cuts near the best one so far, and from others."""
    draw = random.Random(0)  # noqa: S311
    best = descend(weights, shared(weights, [1.0] * weights.chunks), ramp, hurry=hurry)
    found = [best]
    for turn in range(min(SHAKES, EFFORT // weights.stages**2 // min(weights.stages, MANY))):
        if hurry():
            break
        start = (
            _shaken(weights, best, draw)
            if turn % 2
            else shared(weights, [draw.random() for _ in range(weights.chunks)])
        )
        found.append(descend(weights, start, ramp, hurry=hurry))
        best = _best(weights, [best, found[-1]], ramp)
    return found


def least_busy(weights: Weights) -> IntArray:
    """Return the linear cut with the least memory missing, and of those one with the least busy busiest device."""
    first, last = np.triu_indices(weights.layers + 1, 1)
    needed = weights.stage_held(first, last)
    if not weights.beside:
        needed = needed + weights.stage_static(first, last) + weights.stage_peak(first, last)
    (device,) = weights.stages_of.T
    missing = [weights.beyond(needed, room) for room in weights.room[np.argsort(device)].tolist()]
    square = np.full((weights.layers + 1,) * 2, np.inf)
    least, _ = _least_maximum(square, first, last, missing)
    work = weights.stage_work(first, last)
    _, starts = _least_maximum(square, first, last, [np.where(more <= least, work, np.inf) for more in missing])
    return starts


def _least_maximum(
    square: FloatArray, first: IntArray, last: IntArray, costs: Sequence[FloatArray]
) -> tuple[float, IntArray]:
    """Return the least maximum of the costs of all stages, and the first layers of the stages of a cut with it.

    Dynamic programming over stages: for every number of layers, the best first layer of the stage that ends there.
    """
    best, choices = np.full(len(square), np.inf), []
    best[0] = 0.0
    for cost in costs:
        square[first, last] = cost
        maximum = np.maximum(best[:, None], square)
        choices.append(maximum.argmin(axis=0))
        best = maximum.min(axis=0)
    starts = [len(square) - 1]
    for choice in reversed(choices):
        starts.append(int(choice[starts[-1]]))
    return float(best[-1]), np.array(starts[:0:-1])


def shared(weights: Weights, shares: Sequence[float]) -> IntArray:
    """Return the cut in which each chunk of stages has a share of all work, and its stages have about equal parts."""
    layer = np.arange(weights.layers)
    work = np.cumsum(weights.stage_work(layer, layer + 1))
    part = np.cumsum(np.repeat(shares, weights.devices))
    stage = np.arange(1, weights.stages)
    inner = np.searchsorted(work, work[-1] * part[:-1] / part[-1])
    inner = np.maximum.accumulate(inner - stage) + stage
    return np.concatenate([[0], np.clip(inner, stage, weights.layers - weights.stages + stage)])


def descend(weights: Weights, starts: IntArray, ramp: float = 0.0, *, hurry: Stop = never) -> IntArray:
    """Return the cut that giving a layer from one stage to another no longer makes better balanced."""
    while not hurry():
        cuts = np.concatenate([starts[None], slides(weights, starts)])
        chosen = int(order(weights, cuts, ramp)[0])
        if not chosen:
            break
        starts = cuts[chosen]
    return starts


def slides(weights: Weights, starts: IntArray) -> IntArray:
    """Return the cuts in which one stage gives up a layer and another gets one, while those between slide along.

    Of many stages only those of the heaviest device give.
    """
    sizes = np.diff(np.append(starts, weights.layers))
    givers = np.arange(weights.stages) if weights.stages <= MANY else weights.stages_of[_heaviest(weights, starts)]
    giver, taker = np.repeat(givers, weights.stages), np.tile(np.arange(weights.stages), len(givers))
    allowed = (giver != taker) & (sizes[giver] > 1)
    giver, taker = giver[allowed, None], taker[allowed, None]
    stage = np.arange(weights.stages)
    sooner, later = (giver < stage) & (stage <= taker), (taker < stage) & (stage <= giver)
    moved: IntArray = starts - sooner + later
    return moved


def order(weights: Weights, cuts: IntArray, ramp: float = 0.0) -> IntArray:
    """Return the places of cuts, the better balanced first: by memory missing, busiest device, sum of squares."""
    work = weights.work(cuts)
    largest = weights.stage_work(*weights.stages_from(cuts)).max(axis=1)
    # Whole numbers, so that sums are exact: two cuts must not each seem better than the other.
    parts = np.rint(work * (PARTS / work.sum(axis=1, keepdims=True).max(initial=1.0)))
    return np.lexsort([(parts**2).sum(axis=1), work.max(axis=1) + ramp * largest, weights.missing(cuts).max(axis=1)])


def _heaviest(weights: Weights, starts: IntArray) -> int:
    """Return the device that lacks most memory, or else works most."""
    return int(np.lexsort([weights.work(starts[None])[0], weights.missing(starts[None])[0]])[-1])


def _best(weights: Weights, cuts: Sequence[IntArray] | IntArray, ramp: float) -> IntArray:
    chosen: IntArray = cuts[order(weights, np.asarray(cuts), ramp)[0]]
    return chosen


def _shaken(weights: Weights, starts: IntArray, draw: random.Random) -> IntArray:
    """Return a cut some random steps away."""
    for _ in range(draw.choice((1, 2, 3, 4))):
        near = slides(weights, starts)
        starts = near[draw.randrange(len(near))] if len(near) else starts
    return starts
