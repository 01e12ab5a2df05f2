"""A neighbourhood of a schedule: the ops that start within a stretch of time, put in the best sequence by CP-SAT.

Everything before the stretch stays, so it only says when devices are free and inputs arrive, and what is live.
Everything after it keeps its sequence, so each op in the stretch has a ``tail``: how long, at least, from its end to
the objective. What is left is a small model whatever the size of the instance. A set of devices is free to change its
sequence; the others keep theirs and only move in time.

Under post-validation a device counts from its first start, which stays where it is: then the tail to a device's last
end is taken less that start, and both objectives are the largest end plus tail.
"""

from __future__ import annotations

from collections.abc import Collection, Iterator
from dataclasses import dataclass, replace
from functools import cached_property
from itertools import pairwise
from typing import Any

import numpy as np
from ortools.sat.python import cp_model

from solver.device_ops import DeviceOps, Op
from zbplan.instance import BW, UNLIMITED, B, Instance, IntArray, Orders
from zbplan.simulate import simulate
from zbplan.tighten import tighten

Literal = Any
"""A Boolean variable of a model, its negation, or a constant."""


@dataclass(frozen=True, eq=False)
class Timed:
    """Orders with their best times, as a graph over the positions in ``orders.ops``."""

    instance: Instance
    orders: Orders

    @cached_property
    def start(self) -> IntArray:
        """Ticks at which each op starts."""
        return tighten(self.instance, self.orders).start

    @cached_property
    def duration(self) -> IntArray:
        """Ticks of each op."""
        return self.instance.duration.ravel()[self.orders.ops]

    @cached_property
    def device(self) -> IntArray:
        """The device of each op."""
        return np.repeat(np.arange(self.instance.devices), np.diff(self.orders.offsets))

    @cached_property
    def feeds(self) -> tuple[IntArray, IntArray, IntArray]:
        """Producer, consumer and lag of every dependency."""
        instance, ops = self.instance, self.orders.ops
        at = np.full(instance.duration.size, -1)
        at[ops] = np.arange(len(ops))
        forward, backward, weight, whole = at.reshape(instance.duration.shape)
        backward = np.maximum(backward, whole)
        at_once = np.zeros(instance.stages, dtype=np.int64)
        links = [
            (forward[:-1], forward[1:], instance.forward_lag),
            (backward[1:], backward[:-1], instance.backward_lag),
            (forward, backward, at_once),
            (backward, weight, at_once),
        ]
        columns = [(first.ravel(), then.ravel(), np.repeat(lag, instance.microbatches)) for first, then, lag in links]
        producer, consumer, lag = (np.concatenate(column) for column in zip(*columns, strict=True))
        there = consumer >= 0
        return producer[there], consumer[there], lag[there]

    @cached_property
    def until_end(self) -> IntArray:
        """Least ticks from the start of each op to the objective, all sequences kept."""
        first = (
            self.start[self.orders.offsets[:-1]] if self.instance.post_validated else np.zeros(self.instance.devices)
        )
        tail = -first.astype(np.int64)[self.device]
        following: list[list[tuple[int, int]]] = [[] for _ in tail]
        for producer, consumer, lag in zip(*(column.tolist() for column in self.feeds), strict=True):
            following[producer].append((consumer, lag))
        for at in range(len(tail) - 1):
            if self.device[at] == self.device[at + 1]:
                following[at].append((at + 1, 0))
        least, duration = tail.tolist(), self.duration.tolist()
        for at in reversed(self._sequence.tolist()):
            least[at] = duration[at] + max([least[at], *(lag + least[then] for then, lag in following[at])])
        return np.array(least, dtype=np.int64)

    @cached_property
    def _sequence(self) -> IntArray:
        """Positions with every op behind all that it waits for: by time, were every op to take some."""
        instance = replace(self.instance, duration=np.maximum(1, self.instance.duration))
        return np.argsort(simulate(instance, self.orders).start, kind="stable")

    @cached_property
    def objective(self) -> int:
        """Ticks of the objective."""
        return int((self.start + self.until_end).max())

    @cached_property
    def critical(self) -> IntArray:
        """Positions of the ops that may not start any later."""
        return np.flatnonzero(self.start + self.until_end == self.objective)


class Neighbourhood:
    """The ops of a schedule that start within a stretch of time, as a CP-SAT model.

    Parameters
    ----------
    begin, end
        The stretch, in ticks.
    free
        The devices that may change their sequence.

    Attributes
    ----------
    settled
        Whether it is known what is best.
    """

    def __init__(self, timed: Timed, begin: int, end: int, free: Collection[int]) -> None:
        self.timed = timed
        self.instance = timed.instance
        self.ops = DeviceOps(timed.instance)
        self.inside = [
            np.flatnonzero((timed.device == device) & (timed.start >= begin) & (timed.start < end)).tolist()
            for device in range(self.instance.devices)
        ]
        self.free = free
        self.settled = False
        # An op without duration takes a tick here, so that starts say in which sequence ops run.
        self._duration = np.maximum(1, timed.duration)
        self.model = cp_model.CpModel()
        self.start: dict[int, Any] = {}
        self._before: dict[tuple[int, int], Literal] = {}

    def improved(self, effort: float) -> Orders | None:
        """Return the orders with this neighbourhood at its best; None if nothing better was found.

        Parameters
        ----------
        effort
            CP-SAT's deterministic time.
        """
        self._add_ops()
        self._keep_dependencies()
        self._one_op_at_a_time()
        self._fit_memory()
        known = self._set_objective()
        solver = cp_model.CpSolver()
        solver.parameters.max_deterministic_time = effort
        solver.parameters.num_workers = 1
        solver.parameters.random_seed = 1
        solver.parameters.linearization_level = 0
        solver.parameters.symmetry_level = 0
        status = solver.solve(self.model)
        self.settled = status == cp_model.OPTIMAL
        if status not in (cp_model.OPTIMAL, cp_model.FEASIBLE) or solver.objective_value >= known:
            return None
        return self._orders(solver)

    def _add_ops(self) -> None:
        timed = self.timed
        release = self._releases()
        latest = timed.objective - int(timed.until_end.min()) + int((timed.duration == 0).sum())
        for positions in self.inside:
            for at in positions:
                start = self.model.new_int_var(release[at], latest, "")
                self.model.add_hint(start, int(timed.start[at]))
                self.start[at] = start

    def _releases(self) -> dict[int, int]:
        """Return when the device of each op is free, and its inputs from before the stretch are there."""
        timed = self.timed
        release: dict[int, int] = {}
        for positions in self.inside:
            for at in positions:
                first = positions[0]
                begins = first == timed.orders.offsets[timed.device[at]]
                release[at] = int(timed.start[first] if begins else timed.start[first - 1] + timed.duration[first - 1])
        for producer, consumer, lag in zip(*timed.feeds, strict=True):
            if consumer in release and producer not in release:
                arrival = int(timed.start[producer] + timed.duration[producer] + lag)
                release[int(consumer)] = max(release[int(consumer)], arrival)
        return release

    def _keep_dependencies(self) -> None:
        for producer, consumer, lag in zip(*(column.tolist() for column in self.timed.feeds), strict=True):
            if producer in self.start and consumer in self.start:
                self._follow(producer, consumer, lag)

    def _follow(self, first: int, second: int, lag: int = 0) -> Any:
        return self.model.add(self.start[second] >= self.start[first] + int(self._duration[first]) + lag)

    def _one_op_at_a_time(self) -> None:
        for device, positions in enumerate(self.inside):
            if device not in self.free:
                for first, second in pairwise(positions):
                    self._follow(first, second)
                continue
            for first, second in self._pairs(positions):
                literal = self.before(first, second)
                if literal is True:
                    self._follow(first, second)
                else:
                    self._follow(first, second).only_enforce_if(literal)
                    self._follow(second, first).only_enforce_if(~literal)

    @staticmethod
    def _pairs(positions: list[int]) -> Iterator[tuple[int, int]]:
        for index, first in enumerate(positions):
            for second in positions[index + 1 :]:
                yield first, second

    def before(self, first: int, second: int) -> Literal:
        """Return whether one op of a device runs before another: a constant where it must, or keeps its sequence."""
        if self.timed.device[first] not in self.free or self.ops.must_precede(self._op(first), self._op(second)):
            return first < second
        if self.ops.must_precede(self._op(second), self._op(first)):
            return False
        if (first, second) not in self._before:
            literal = self.model.new_bool_var("")
            self.model.add_hint(literal, first < second)
            self._before[first, second], self._before[second, first] = literal, ~literal
        return self._before[first, second]

    def _op(self, at: int) -> Op:
        kind, stage, microbatch = self.instance.split(self.timed.orders.ops[at])
        return (B if kind == BW else kind), stage, microbatch

    def _fit_memory(self) -> None:
        instance, ops = self.instance, self.timed.orders.ops
        hold, keep = instance.hold.ravel(), (instance.hold - instance.release).ravel()
        for device, positions in enumerate(self.inside):
            if device not in self.free or instance.room[device] == UNLIMITED or not positions:
                continue
            live = int(keep[ops[int(self.timed.orders.offsets[device]) : positions[0]]].sum())
            for at in positions:
                taken = int(hold[ops[at]]) + int(instance.peak.ravel()[ops[at] % instance.peak.size])
                if not taken:
                    continue
                earlier = [int(keep[ops[other]]) * self.before(other, at) for other in positions if other != at]
                self.model.add(cp_model.LinearExpr.sum(earlier) + live + taken <= int(instance.room[device]))

    def _set_objective(self) -> int:
        """Minimise the largest end plus tail, and after it the sum over devices; return what it is now."""
        timed = self.timed
        tails = self._tails()
        worst = self.model.new_int_var(0, timed.objective, "")
        exits: list[Any] = []
        known = 0
        for positions in filter(None, self.inside):
            leaves = self.model.new_int_var(-timed.objective, timed.objective, "")
            exits.append(leaves)
            for at in positions:
                self.model.add(leaves >= self.start[at] + tails[at])
            self.model.add(worst >= leaves)
            known += max(int(timed.start[at]) + tails[at] for at in positions)
        self.model.minimize(len(exits) * worst + cp_model.LinearExpr.sum(exits))
        most = max(int(timed.start[at]) + tail for at, tail in tails.items())
        return known + len(exits) * most

    def _tails(self) -> dict[int, int]:
        """Return the least ticks from the start of each op to the objective by way of what comes after the stretch."""
        timed = self.timed
        tails: dict[int, int] = {}
        for device, positions in enumerate(self.inside):
            if not positions:
                continue
            then = positions[-1] + 1
            if then < timed.orders.offsets[device + 1]:
                behind = int(timed.until_end[then])
            else:
                first = int(timed.start[timed.orders.offsets[device]])
                behind = -first if self.instance.post_validated else 0
            tails |= {at: int(timed.duration[at]) + behind for at in positions}
        for producer, consumer, lag in zip(*(column.tolist() for column in timed.feeds), strict=True):
            if producer in tails and consumer not in tails:
                by_consumer = int(timed.duration[producer]) + lag + int(timed.until_end[consumer])
                tails[producer] = max(tails[producer], by_consumer)
        return tails

    def _orders(self, solver: cp_model.CpSolver) -> Orders:
        ops = self.timed.orders.ops.copy()
        for positions in self.inside:
            if positions:
                ops[positions] = ops[sorted(positions, key=lambda at: solver.value(self.start[at]))]
        return Orders(ops, self.timed.orders.offsets)
