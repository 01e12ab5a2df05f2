"""The planner between the names: a search for the policy whose list schedule is best, then for the best orders nearby.

Policies come first. They start from the schedules that have a name, from the repertoire where memory is scarce, and
from random policies, and the better ones change a little. Small groups of policies develop apart at first, so that one
lucky start does not crowd out the rest, and together later. Then the best orders of different policies are annealed,
and after each round the better half goes on. A large effort makes several searches of this kind, each of which begins
anew: where one settles is a matter of luck.
The effort is counted in scheduled ops, never in seconds: equal inputs give equal plans.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from itertools import islice

import numpy as np

from heuristic.anneal import anneal
from heuristic.list_schedule import Policy, Task, list_schedule, task_of
from heuristic.objective import at_best, iteration
from heuristic.repertoire import repertoire
from heuristic.variation import Variation
from zbplan.instance import BW, UNLIMITED, B, F, Instance, Orders, W
from zbplan.simulate import simulate
from zbplan.stop import Stop, never

RUNG = 50_000
"""Scheduled ops of an effort that takes about a hundredth of a second, beside the repertoire."""

QUICK = 200_000
"""Scheduled ops of an effort that takes about a twentieth of a second."""

THOROUGH = 100_000_000
"""Scheduled ops of an effort that takes up to about fifteen seconds."""

SEARCHES, SEVERAL = 4, 3_000
"""How many searches a large effort makes, and how many schedules make one large."""

NEAR = 1.01
"""Up to how many times as long as the best a try may take, each op as early as possible, for better times to matter."""

POLICIES = 0.3
"""Part of the effort that goes into policies; the rest anneals."""

GROUPS = 6
CYCLES = 4
"""How many times a long search goes back from annealing to policies, which then also start from annealed orders."""

RANDOM_PART, APART = 0.25, 0.6
"""Parts of the tries: until then policies are random; until then groups develop apart."""

LEAST_KNOWN, KNOWN = 4, 80_000
"""Policies of the repertoire that every search tries, and the ops of all together beyond that."""

REPEATED = 3
"""How many of the best starts have their block repeated."""

OVERHEAD = 500
"""What one schedule costs beside its ops, in ops."""

CONTENDERS = (1, 2, 4, 8)
"""How many orders may begin to be annealed; half of them go on each time."""

HEATS = (0.1, 0.03)
"""What annealing starts from, one call after the other, in mean durations of an op."""

CALL = 10_000
"""Tries of one call of annealing if every one of them times all ops."""

CHEAPER = 16
"""How many ops annealing puts in sequence or times while a policy schedules one."""


def improvements(
    instance: Instance, starts: Sequence[Orders], *, effort: int = QUICK, stop: Stop = never
) -> Iterator[Orders]:
    """Yield orders, each better than all starts and than all before; legal under any limit under which a plan exists.

    Orders are compared by what a plan made of them takes, at the best times for them.

    Parameters
    ----------
    instance
        What to plan.
    starts
        Legal orders to start from; there may be none, then the first orders always come.
    effort
        Ops to schedule in all tries together.
    stop
        Asked between tries whether to end; without starts at least one try is made.
    """
    floor = least_work(instance)
    starts = sorted(starts, key=lambda orders: iteration(instance, orders))
    best = min((at_best(instance, orders) for orders in starts), default=UNLIMITED)
    searches = SEARCHES if effort >= SEVERAL * int(instance.duration[:3].size) else 1
    for seed in range(searches):
        tries = _Search(instance, starts, seed).tries(effort // searches)
        while best > floor and not (best < UNLIMITED and stop()):
            objective, orders = next(tries, (UNLIMITED, None))
            if orders is None:
                break
            if objective < NEAR * best and (objective := at_best(instance, orders)) < best:
                best = objective
                yield orders


def least_work(instance: Instance) -> int:
    """Return the least ticks that the busiest device works: no orders have a better objective."""
    duration = instance.duration
    apart = np.where(instance.splittable[:, None], duration[B] + duration[W], duration[BW])
    work = (duration[F] + np.minimum(apart, duration[BW])).sum(axis=1)
    return max(int(work[list(stages)].sum()) for stages in instance.stages_of)


_Judged = tuple[int, int, Orders]
"""Objective, a serial number that breaks ties, and orders."""


@dataclass
class _Group:
    """The best policies of a group, with their objective and a serial number that breaks ties."""

    size: int
    members: list[tuple[int, int, Policy]] = field(default_factory=list)

    def offer(self, objective: int, serial: int, policy: Policy) -> None:
        """Keep a policy if it is among the best and its objective is not there yet."""
        if all(objective != known for known, _, _ in self.members):
            self.members.append((objective, serial, policy))
            self.members.sort(key=lambda member: member[:2])
            del self.members[self.size :]


class _Search:
    """Groups of policies and how the next one comes about, and the best orders of all."""

    def __init__(self, instance: Instance, starts: Sequence[Orders], seed: int) -> None:
        self.instance = instance
        self.task: Task = task_of(instance)
        self.variation = Variation(instance, seed)
        self.seed = seed
        self.groups = [_Group(size=6) for _ in range(GROUPS)]
        self.serial = 0
        self.contenders: list[_Judged] = []
        self.blocks = []
        self.waiting: list[Policy] = []
        for orders in starts:
            like = self.variation.like(simulate(instance, orders))
            self._compete(iteration(instance, orders), orders)
            self.blocks.append(self.variation.block_of(like))
            self.waiting.append(like)
        if self.variation.is_scarce:
            count = max(LEAST_KNOWN, KNOWN // int(instance.duration[:3].size))
            self.waiting.extend(islice(repertoire(self.variation), count))
        for block in self.blocks[:REPEATED]:
            self.waiting.extend(self.variation.repeating(block))

    def tries(self, effort: int) -> Iterator[tuple[int, Orders]]:
        """Try policies and anneal in turn; yield every objective with its orders."""
        cycles = CYCLES if effort >= CYCLES * QUICK else 1
        for _ in range(cycles):
            yield from self._policies(int(POLICIES * effort / cycles))
            yield from self._annealing(int((1 - POLICIES) * CHEAPER * effort / cycles))

    def _policies(self, effort: int) -> Iterator[tuple[int, Orders]]:
        """Schedule one policy after the other."""
        known = len(self.waiting) if self.variation.is_scarce else 0
        steps = known + max(2, effort // (int(self.instance.duration[:3].size) + OVERHEAD))
        for step in range(steps):
            if step >= APART * steps and len(self.groups) > 1:
                self._merge()
            group = self.groups[self.serial % len(self.groups)]
            policy = self._next(group, step / steps)
            orders = list_schedule(self.task, policy)
            objective = iteration(self.instance, orders)
            group.offer(objective, self.serial, policy)
            self._compete(objective, orders)
            yield objective, orders

    def _annealing(self, effort: int) -> Iterator[tuple[int, Orders]]:
        """Anneal the contenders, fewer in every round; where only one can be, each search takes another."""
        ops = sum(len(orders.ops) for _, _, orders in self.contenders[:1])
        calls = effort // max(1, CALL * ops)
        count = max((count for count in CONTENDERS if count * count.bit_length() <= calls), default=1)
        rounds = count.bit_length()
        while count > 0 and ops <= effort:
            first = self.seed % len(self.contenders) if rounds == 1 else 0
            going_on, self.contenders = self.contenders[first : first + count], []
            for _, _, orders in going_on:
                yield from self._annealed(orders, effort // (rounds * count))
            count //= 2

    def _annealed(self, orders: Orders, effort: int) -> Iterator[tuple[int, Orders]]:
        """Anneal orders again and again, from the best that came of them, which then compete with others."""
        calls = max(1, effort // (CALL * len(orders.ops)))
        for call in range(calls):
            heat = HEATS[call % len(HEATS)] if effort > CALL * len(orders.ops) else 0.0
            orders = anneal(self.instance, orders, effort=effort // calls, heat=heat, seed=self.serial + 1)
            objective = iteration(self.instance, orders)
            self.serial += 1
            yield objective, orders
        self._compete(objective, orders)
        self.groups[0].offer(objective, self.serial, self.variation.like(simulate(self.instance, orders)))

    def _compete(self, objective: int, orders: Orders) -> None:
        """Let orders be a contender if they are among the best and no other ones are equally good."""
        self.serial += 1
        if all(objective != known for known, _, _ in self.contenders):
            self.contenders.append((objective, self.serial, orders))
            self.contenders.sort(key=lambda contender: contender[:2])
            del self.contenders[max(CONTENDERS) :]

    def _next(self, group: _Group, part: float) -> Policy:
        draw = self.variation.random
        if not self.contenders:
            return self.variation.plain()
        if self.waiting:
            return self.waiting.pop(0)
        if part < RANDOM_PART or not group.members:
            return self.variation.random_policy(self.blocks)
        rank = min(draw.randrange(len(group.members)), draw.randrange(len(group.members)))
        return self.variation.changed(group.members[rank][2])

    def _merge(self) -> None:
        together = _Group(size=2 * GROUPS)
        for group in self.groups:
            for member in group.members:
                together.offer(*member)
        self.groups = [together]
