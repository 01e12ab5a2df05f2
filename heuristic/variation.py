"""Variation: random policies for list schedules, and small changes of known ones.

All quantities are drawn in the instance's own measure: the period, which is the work of the busiest device on one
microbatch, and the mean T_W. Draws use nothing but uniform numbers and exact arithmetic, so that a seed means the same
policies everywhere.
"""

from __future__ import annotations

import random
from collections.abc import Iterator, Sequence
from functools import cached_property
from itertools import product

import numpy as np

from heuristic.list_schedule import NEVER, Policy
from zbplan.instance import BW, B, F, Instance, IntArray, W
from zbplan.simulate import Schedule

GAPS = (1.0, 1.0, 0.8, 0.5, 0.2, 0.0, 2.0, 4.0)
"""Parts of T_W that a gap must have for W."""


class Variation:
    """A stream of policies for one instance, the same stream for the same seed.

    Parameters
    ----------
    instance
        What to schedule.
    seed
        Of the random numbers.
    """

    def __init__(self, instance: Instance, seed: int = 0) -> None:
        self.instance = instance
        self.random = random.Random(seed)  # noqa: S311

    @cached_property
    def period(self) -> int:
        """Mean ticks of a microbatch on the busiest device, at least one."""
        means: IntArray = self._mean[F] + self._backward + np.where(self.instance.splittable, self._mean[W], 0)
        return max(1, *(int(means[list(stages)].sum()) for stages in self.instance.stages_of))

    @cached_property
    def weight(self) -> int:
        """Mean ticks of W."""
        return int(self._mean[W].sum()) // self.instance.stages

    @cached_property
    def chunk(self) -> IntArray:
        """Of every stage, how many earlier stages its device holds."""
        chunk = np.zeros(self.instance.stages, dtype=np.int64)
        for stages in self.instance.stages_of:
            chunk[list(stages)] = range(len(stages))
        return chunk

    @cached_property
    def launches(self) -> list[IntArray]:
        """Sequences of microbatches: as given and, where they differ, longest first and longest last."""
        given = np.arange(self.instance.microbatches)
        work = self.instance.duration[:3].sum(axis=(0, 1))
        longest = np.argsort(-work, kind="stable")
        return [given] if (work == work[0]).all() else [given, longest, longest[::-1].copy()]

    @cached_property
    def is_scarce(self) -> bool:
        """Whether memory rather than time is what ends: some device holds little more than are always under way."""
        way = int(self.route(np.zeros((2, self.instance.stages), dtype=np.int64))[B, 0])
        return bool(5 * self.held.min() * self.period < 6 * way)

    @cached_property
    def _mean(self) -> IntArray:
        total: IntArray = self.instance.duration.sum(axis=2)
        return total // self.instance.microbatches

    @cached_property
    def _backward(self) -> IntArray:
        chosen: IntArray = np.where(self.instance.splittable, self._mean[B], self._mean[BW])
        return chosen

    def plain(self) -> Policy:
        """Return the policy from which others differ: BW before F, later stages first, W where it fits into a gap."""
        instance = self.instance
        stage = np.arange(instance.stages, dtype=np.int64)[:, None]
        return Policy(
            launch=np.arange(instance.microbatches),
            key=np.stack([2 * instance.stages - stage, stage]).repeat(instance.microbatches, axis=2),
            slack=NEVER,
            patience=0,
            caps=np.full((instance.stages, 2), instance.microbatches),
            weight_gap=1.0,
            backlog=np.full(instance.devices, instance.stages * instance.microbatches),
            split=np.ones(instance.stages, dtype=np.bool_),
        )

    def like(self, schedule: Schedule) -> Policy:
        """Return the policy that gives the orders of a schedule again, where they keep to one launch sequence."""
        instance = self.instance
        kind, cell = np.divmod(schedule.orders.ops, instance.stages * instance.microbatches)
        stage, microbatch = np.divmod(cell, instance.microbatches)
        launch = microbatch[(kind == F) & (stage == 0)]
        position = np.argsort(launch)[microbatch]
        key = np.zeros((3, instance.stages, instance.microbatches), dtype=np.int64)
        key[np.where(kind == BW, B, kind), stage, position] = schedule.start
        split = np.ones(instance.stages, dtype=np.bool_)
        split[stage[kind == BW]] = False
        return self.plain()._replace(launch=launch, key=key, slack=0, weight_gap=np.inf, split=split)

    def block_of(self, like: Policy) -> IntArray:
        """Return keys that repeat what a schedule does with its middle microbatch, one period after the other."""
        middle = self.instance.microbatches // 2
        block = like.key[:W, :, middle : middle + 1] - like.key[F, 0, middle]
        keys: IntArray = block + self.period * np.arange(self.instance.microbatches)
        return keys

    def repeating(self, block: IntArray) -> Iterator[Policy]:
        """Yield policies that repeat a block, a little stretched, with free ramps and more or less strictly between."""
        policy = self.plain()._replace(key=block + self.period // 50 * np.arange(self.instance.microbatches))
        for before, between in ((1, 0.5), (1, 0.75), (2, 1)):
            slack = np.array([before * self.period, int(between * self.period), NEVER])
            for weight_gap, patience in product((0.5, 1.0), (0, self.period // 15)):
                yield policy._replace(slack=slack, weight_gap=weight_gap, patience=patience)

    def random_policy(self, blocks: Sequence[IntArray] = ()) -> Policy:
        """Return a policy with drawn rules.

        Its keys follow one microbatch through all stages, rank the chunks of a device, or are a given block, perhaps
        stretched.
        """
        draw = self.random
        if blocks and draw.random() < 0.5:
            key = draw.choice(blocks) + int(0.05 * draw.random() * self.period) * np.arange(self.instance.microbatches)
        else:
            key = self._ranks() if draw.random() < 0.25 else self._route()
        if draw.random() < 0.3:
            key = np.concatenate([key, key[B:] + int(4 * draw.random() * self.period)])
        backlog = draw.choice((None, None, 0, 1, 2, 4))
        policy = self.plain()._replace(
            launch=draw.choice(self.launches),
            key=key,
            slack=np.array([self._random_slack() for _ in range(3)]),
            patience=draw.choice((0, int(draw.choice((0.2, 0.6)) * draw.random() * self.period))),
            weight_gap=draw.choice(GAPS),
        )
        return policy if backlog is None else policy._replace(backlog=np.full(self.instance.devices, backlog))

    def _random_slack(self) -> int:
        """Return none at all, little, much, or any: from strict sequences of keys to mere preferences."""
        draw = self.random
        return draw.choice((NEVER, 0, *(int(width * draw.random() * self.period) for width in (0.5, 2, 6))))

    def _ranks(self) -> IntArray:
        ranks = list(range(2 * (int(self.chunk.max()) + 1)))
        self.random.shuffle(ranks)
        rank = np.array(ranks, dtype=np.int64).reshape(2, -1)
        return rank[:, self.chunk][:, :, None].repeat(self.instance.microbatches, axis=2)

    def _route(self) -> IntArray:
        """Return keys as the times of a microbatch that waits a drawn time at every edge of a class."""
        draw, edges = self.random, self._edges
        waits = [draw.choice((0.0, 0.0, 1.4 * draw.random() - 0.4)) for _ in range(edges.max() + 1)]
        wait = (self.period * np.array(waits)).astype(np.int64)[edges]
        route = self.route(wait, draw.choice((0, int((8 * draw.random() - 4) * self.period))))
        return route[:, :, None] + self._steps()

    def route(self, wait: IntArray, shift: int = 0) -> IntArray:
        """Return when a microbatch starts F (row 0) and B (row 1) on each stage.

        Parameters
        ----------
        wait : int64[2, stages]
            Ticks that it waits, F after each stage and B before it; in the last column, F between its F and its B.
        shift
            Ticks by which every B comes still later.
        """
        instance = self.instance
        forward = np.cumsum(np.concatenate([[0], self._mean[F, :-1] + instance.forward_lag + wait[0, :-1]]))
        turn = forward[-1] + self._mean[F, -1] + wait[0, -1]
        back = (self._backward[1:] + instance.backward_lag + wait[1, :-1])[::-1]
        backward = np.cumsum(np.concatenate([[turn], back]))[::-1]
        starts: IntArray = np.stack([forward, backward + shift]).astype(np.int64)
        return starts

    def _steps(self) -> IntArray:
        """Return by how much each microbatch comes after the first: evenly, or in groups that follow closely."""
        draw = self.random
        step = int((0.9 + 0.4 * draw.random()) * self.period)
        size = draw.choice((1, 1, 1, 2, 3, 4, 6, 8))
        return self.grouped(size, step, int(draw.random() * step))

    def grouped(self, size: int, step: int, follow: int) -> IntArray:
        """Return by how much each microbatch comes after the first, in groups of a size.

        Parameters
        ----------
        step
            Ticks from group to group, per microbatch of the group.
        follow
            Ticks from one microbatch of a group to the next.
        """
        group, member = np.divmod(np.arange(self.instance.microbatches), size)
        steps: IntArray = group * (size * step) + member * follow
        return steps

    @cached_property
    def _edges(self) -> IntArray:
        """Return the class of each edge of a microbatch's way, F (row 0) to the next stage and B (row 1) from it.

        Edges between the same chunks are alike. The last column is the turn from F to B, and unused.
        """
        chunk = self.chunk
        classes: dict[tuple[int, int, int], int] = {}
        edges = np.zeros((2, self.instance.stages), dtype=np.int64)
        for kind in (F, B):
            for stage in range(self.instance.stages - 1):
                key = (kind, int(chunk[stage]), int(chunk[stage + 1]))
                edges[kind, stage] = classes.setdefault(key, len(classes))
        edges[:, -1] = len(classes)
        return edges

    def changed(self, policy: Policy) -> Policy:
        """Return a policy that differs in one to three ways."""
        changes = (
            *(4 * [self._delay]),
            self._stretch,
            self._slack,
            self._patience,
            self._weight_gap,
            self._weight_keys,
            self._backlog,
            self._cap,
            self._split,
            self._launch,
        )
        for _ in range(self.random.choice((1, 1, 2, 3))):
            policy = self.random.choice(changes)(policy)
        return policy

    def _about(self, width: float) -> float:
        """Return a number around 0, as a rule not beyond a width."""
        draw = self.random.random
        return width * (2 * (draw() + draw() + draw()) - 3)

    def _some(self, count: int) -> slice:
        """Return a range of at least one index."""
        first = self.random.randrange(count)
        return slice(first, first + self.random.choice((1, 1, 2, 4, 8, 16, count)))

    def _which(self) -> IntArray:
        """Return some stages: all of one chunk, those of some devices, or some in sequence; none where none is both."""
        draw, instance = self.random, self.instance
        choice = draw.randrange(3)
        if choice == 0:
            return np.flatnonzero(self.chunk == draw.randrange(int(self.chunk.max()) + 1))
        if choice == 1:
            held = np.isin(instance.device_of, np.arange(instance.devices)[self._some(instance.devices)])
            return np.flatnonzero(held & (self.chunk == draw.randrange(int(self.chunk.max()) + 1)))
        return np.arange(instance.stages)[self._some(instance.stages)]

    def _delay(self, policy: Policy) -> Policy:
        """Put the keys of a kind off or forward, on some stages, for all or some microbatches, evenly or by a slope."""
        draw, key = self.random, policy.key.copy()
        some = slice(None) if draw.random() < 0.6 else self._some(self.instance.microbatches)
        amount = int(self._about(draw.choice((1.0, 0.3, 0.1))) * self.period)
        stages = self._which()
        part = np.ones(len(stages), dtype=np.int64)
        if draw.random() < 0.3:
            part = draw.choice((np.arange(len(stages)), np.arange(len(stages))[::-1]))
        key[draw.randrange(len(key)), stages, some] += (amount * part // part.max(initial=1))[:, None]
        return policy._replace(key=key)

    def _stretch(self, policy: Policy) -> Policy:
        """Let microbatches follow each other sooner or later."""
        step = int(self._about(0.1) * self.period)
        return policy._replace(key=policy.key + step * np.arange(self.instance.microbatches))

    def _slack(self, policy: Policy) -> Policy:
        draw, slack = self.random, np.full(3, policy.slack, dtype=np.int64)
        some = draw.choice((slice(None), slice(0, 1), slice(1, 2), slice(2, 3)))
        if slack[some].max() >= NEVER or draw.random() < 0.2:
            slack[some] = self._random_slack()
        else:
            slack[some] = np.maximum(0, slack[some] + int(self._about(0.5) * self.period))
        return policy._replace(slack=slack)

    def _patience(self, policy: Policy) -> Policy:
        patience = policy.patience + int(self._about(0.1) * self.period) if self.random.random() < 0.8 else 0
        return policy._replace(patience=max(0, patience))

    def _weight_gap(self, policy: Policy) -> Policy:
        draw, gap = self.random, np.full(self.instance.devices, policy.weight_gap)
        some = slice(None) if draw.random() < 0.5 else self._some(self.instance.devices)
        gap[some] = draw.choice(GAPS) if draw.random() < 0.5 else np.maximum(0.0, gap[some] + self._about(0.2))
        return policy._replace(weight_gap=gap)

    def _weight_keys(self, policy: Policy) -> Policy:
        """Give W keys a while after those of B, or take them away."""
        draw = self.random
        if len(policy.key) > W and draw.random() < 0.5:
            return policy._replace(key=policy.key[:W], weight_gap=draw.choice(GAPS))
        after = policy.key[B:W] + int(4 * draw.random() * self.period)
        return policy._replace(key=np.concatenate([policy.key[:W], after]))

    def _backlog(self, policy: Policy) -> Policy:
        draw, instance = self.random, self.instance
        backlog = policy.backlog.copy()
        some = slice(None) if draw.random() < 0.5 else self._some(instance.devices)
        backlog[some] = draw.choice((0, 1, 2, 3, 4, 6, 8, instance.stages * instance.microbatches))
        return policy._replace(backlog=backlog)

    def _cap(self, policy: Policy) -> Policy:
        """Cap microbatches in flight on some stages, a little above or below what memory holds of them."""
        draw, instance = self.random, self.instance
        caps, stages, phase = policy.caps.copy(), self._which(), draw.choice((0, 0, 1))
        old = np.minimum(caps[stages, phase], self.held[stages])
        caps[stages, phase] = np.clip(old + draw.choice((-2, -1, 1, 2)), 1, instance.microbatches)
        return policy._replace(caps=caps)

    @cached_property
    def held(self) -> IntArray:
        """Of every stage, how many microbatches its device can hold on all its stages."""
        instance = self.instance
        held = np.full(instance.stages, instance.microbatches, dtype=np.int64)
        for device, stages in enumerate(instance.stages_of):
            each = int(instance.hold[F, list(stages)].sum()) // instance.microbatches
            if each:
                held[list(stages)] = min(instance.microbatches, int(instance.room[device]) // each)
        return held

    def _split(self, policy: Policy) -> Policy:
        """Let some stages run BW, or split it again."""
        split = policy.split.copy()
        split[self._which()] = self.random.random() < 0.7
        return policy._replace(split=split)

    def _launch(self, policy: Policy) -> Policy:
        return policy._replace(launch=self.random.choice(self.launches))
