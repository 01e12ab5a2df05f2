"""The planner between the names: a search for the policy whose list schedule is best.

It starts from the schedules that have a name and from random policies, and changes the better ones a little. Small
groups of policies develop apart at first, so that one lucky start does not crowd out the rest, and together later.
The effort is counted in scheduled ops, never in seconds: equal inputs give equal plans.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, field

import numpy as np

from heuristic.list_schedule import Policy, Task, list_schedule, task_of
from heuristic.objective import iteration
from heuristic.variation import Variation
from zbplan.instance import BW, UNLIMITED, B, F, Instance, Orders, W
from zbplan.simulate import simulate

QUICK = 200_000
"""Scheduled ops of an effort that takes about a twentieth of a second."""

THOROUGH = 40_000_000
"""Scheduled ops of an effort that takes up to about ten seconds."""

GROUPS = 6
RANDOM_PART, APART = 0.25, 0.6
"""Parts of the effort: until then policies are random; until then groups develop apart."""

REPEATED = 3
"""How many of the best starts have their block repeated."""

OVERHEAD = 500
"""What one schedule costs beside its ops, in ops."""


def improvements(
    instance: Instance, starts: Sequence[Orders], *, effort: int = QUICK, stop: Callable[[], bool] = lambda: False
) -> Iterator[Orders]:
    """Yield orders, each better than all starts and than all before; legal under any limit under which a plan exists.

    Parameters
    ----------
    instance
        What to plan.
    starts
        Legal orders to start from, the best ones first; there may be none, then the first orders always come.
    effort
        Ops to schedule in all tries together.
    stop
        Asked between tries whether to end; without starts at least one try is made.
    """
    search, floor = _Search(instance, starts), least_work(instance)
    steps = max(2, effort // (int(instance.duration[:3].size) + OVERHEAD))
    for step in range(steps):
        if search.best <= floor or (search.best < UNLIMITED and stop()):
            return
        orders = search.try_one(step / steps)
        if orders is not None:
            yield orders


def least_work(instance: Instance) -> int:
    """Return the least ticks that the busiest device works: no orders have a better objective."""
    duration = instance.duration
    apart = np.where(instance.splittable[:, None], duration[B] + duration[W], duration[BW])
    work = (duration[F] + np.minimum(apart, duration[BW])).sum(axis=1)
    return max(int(work[list(stages)].sum()) for stages in instance.stages_of)


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
    """Groups of policies, and how the next one comes about."""

    def __init__(self, instance: Instance, starts: Sequence[Orders]) -> None:
        self.instance = instance
        self.task: Task = task_of(instance)
        self.variation = Variation(instance)
        self.groups = [_Group(size=6) for _ in range(GROUPS)]
        self.best = min((iteration(instance, orders) for orders in starts), default=UNLIMITED)
        self.serial = 0
        self.blocks = []
        self.waiting: list[Policy] = []
        for orders in starts:
            like = self.variation.like(simulate(instance, orders))
            self.blocks.append(self.variation.block_of(like))
            self.waiting.append(like)
        for block in self.blocks[:REPEATED]:
            self.waiting.extend(self.variation.repeating(block))

    def try_one(self, part: float) -> Orders | None:
        """Schedule one more policy, at some part of the effort; return its orders if they are the best so far."""
        if part >= APART and len(self.groups) > 1:
            self._merge()
        group = self.groups[self.serial % len(self.groups)]
        orders, objective = self._judge(group, self._next(group, part))
        if objective >= self.best:
            return None
        self.best = objective
        return orders

    def _judge(self, group: _Group, policy: Policy) -> tuple[Orders, int]:
        orders = list_schedule(self.task, policy)
        objective = iteration(self.instance, orders)
        group.offer(objective, self.serial, policy)
        self.serial += 1
        return orders, objective

    def _next(self, group: _Group, part: float) -> Policy:
        draw = self.variation.random
        if self.best >= UNLIMITED:
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
