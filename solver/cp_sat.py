"""The scheduling problem in OR-tools CP-SAT, for every placement.

One Boolean per pair of a device's ops whose sequence is open says which comes first. It orders their times, and
memory is a sum over these Booleans: what an op finds live is what earlier ops hold less what they have released. That
encoding is much stronger than nested intervals in a cumulative or a reservoir.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable
from dataclasses import dataclass, field
from functools import cached_property
from typing import Any

import numpy as np
from ortools.sat.python import cp_model

from solver.axis import Axis
from solver.device_ops import DeviceOps, Op
from solver.least import Least
from solver.outcome import Outcome
from zbplan.instance import BW, UNLIMITED, B, F, Instance, Orders, W
from zbplan.simulate import measure
from zbplan.tighten import tighten

Literal = Any
"""A Boolean variable of the model, its negation, or a constant."""


MOST_PRESOLVED = 1 << 31
"""Objective up to which CP-SAT may presolve: with much larger numbers presolve was seen to cut off the optimum where
BW is a choice, in one instance of 25 at 2^40 and one of 400 at 2^33; in none without presolve, and none at 2^30."""


@dataclass(frozen=True)
class Settings:
    """How CP-SAT runs.

    Attributes
    ----------
    workers
        Threads.
    seed
        Of its random choices.
    log
        Where to write the solver's log, line by line; None for nowhere.
    """

    workers: int = 2
    seed: int = 1
    log: Callable[[str], None] | None = None


class Model:
    """An instance as a CP-SAT model.

    Parameters
    ----------
    incumbent
        Legal orders: a hint, and an upper limit for every time.
    bound
        A proven lower bound in ticks: the objective is cut there.
    devices
        Those that run one op at a time within their memory, all by default. Fewer make a relaxation: elsewhere only the
        way of each microbatch, and the sequence of equal ones, is kept. Its bound holds, its orders mean nothing.
    """

    def __init__(
        self, instance: Instance, incumbent: Orders, bound: int = 0, devices: Iterable[int] | None = None
    ) -> None:
        self.devices = sorted(range(instance.devices) if devices is None else devices)
        self.ops = DeviceOps(instance)
        self.incumbent = self.ops.without_dominated(incumbent)
        self.axis = Axis(instance, measure(instance, tighten(instance, incumbent)).iteration)
        self.instance = self.axis.scaled
        self._hinted = tighten(self.instance, self.incumbent)
        self._lowest = self.axis.cut(bound)
        self._upper = measure(self.instance, self._hinted).iteration
        self._least = Least(self.instance)
        self.model = cp_model.CpModel()
        self.start: dict[Op, Any] = {}
        self.size: dict[Op, Any] = {}
        self._open_end: dict[Op, Any] = {}
        self._before: dict[tuple[Op, Op], Literal] = {}
        self._fused: dict[tuple[int, int], Literal] = {}

    @property
    def complete(self) -> bool:
        """Whether the model is no relaxation."""
        return len(self.devices) == self.instance.devices

    def build(self) -> cp_model.CpModel:
        """Return the complete model."""
        self._add_ops()
        self._glue_fused_weights()
        self._wait_for_inputs()
        self._one_op_at_a_time()
        self._keep_sequences()
        self._fit_memory()
        self._set_objective()
        self._hint()
        return self.model

    @property
    def may_presolve(self) -> bool:
        """Whether all numbers are small enough for CP-SAT's presolve."""
        return self._upper <= MOST_PRESOLVED

    @cached_property
    def horizon(self) -> int:
        """Units within which some best schedule ends.

        Stage 0 runs the first F and the last B of every microbatch within its device's span; another device's last W
        lies within that device's own span, which begins after the first F of all.
        """
        return (2 if self.instance.post_validated else 1) * self._upper

    def _duration(self, kind: int, stage: int, microbatch: int) -> int:
        return int(self.instance.duration[kind, stage, microbatch])

    def _add_ops(self) -> None:
        for device in range(self.instance.devices):
            for op in self.ops.on(device):
                if op[0] == W and device not in self.devices:
                    continue
                self.start[op] = self.model.new_int_var(*self._reach(op), "{}.{}.{}".format(*op))
                self.size[op] = self._size(op)

    def _reach(self, op: Op) -> tuple[int, int]:
        """Return the earliest and the latest start of an op in schedules that begin at 0 and beat the incumbent.

        The device of stage 0 begins at 0, for all else follows from F there; so every microbatch is home before that
        device's span is over. Where only the horizon limits starts, the whole schedule can move, and propagation puts
        off one op after the other by a little, again and again, before it sees a contradiction.
        """
        kind, stage, microbatch = op
        least, forward = self._least, self._duration(F, stage, microbatch)
        entry = int(least.head[stage, microbatch])
        turn = entry + forward + int(least.descent[stage, microbatch])
        last_turn = self._upper - int(least.homeward[stage, microbatch])
        if kind == W:
            return turn, self.horizon
        if kind == B:
            return turn, last_turn
        first_of_all = self.ops.equal_microbatches and stage == microbatch == 0
        return entry, 0 if first_of_all else last_turn - turn + entry

    def _size(self, op: Op) -> Any:
        kind, stage, microbatch = op
        if kind == F:
            return self._duration(F, stage, microbatch)
        whole = self._duration(BW, stage, microbatch) if kind == B else 0
        if self.instance.device_of[stage] not in self.devices:
            return min(whole, self._duration(B, stage, microbatch)) if self.ops.has_weight(stage) else whole
        if not self.ops.has_weight(stage):
            return whole
        part = self._duration(kind, stage, microbatch)
        fused = self.fused(stage, microbatch)
        return part if isinstance(fused, bool) else part + (whole - part) * fused

    def fused(self, stage: int, microbatch: int) -> Literal:
        """Return whether BW runs in place of B and W."""
        if not self.ops.choice[stage, microbatch]:
            return not self.ops.has_weight(stage)
        if (stage, microbatch) not in self._fused:
            self._fused[stage, microbatch] = self.model.new_bool_var(f"BW.{stage}.{microbatch}")
        return self._fused[stage, microbatch]

    def _end(self, op: Op) -> Any:
        return self.start[op] + self.size[op]

    def _glue_fused_weights(self) -> None:
        """W of a BW takes no time and stands right behind its B."""
        for (stage, microbatch), fused in self._each_choice():
            backward, weight = (B, stage, microbatch), (W, stage, microbatch)
            self.model.add(self.start[weight] == self._end(backward)).only_enforce_if(fused)
            for other in self.ops.on(int(self.instance.device_of[stage])):
                if other not in (backward, weight):
                    self._imply_same(fused, self.before(backward, other), self.before(weight, other))

    def _each_choice(self) -> Iterable[tuple[tuple[int, int], Literal]]:
        chosen = self.ops.choice & np.isin(self.instance.device_of, self.devices)[:, None]
        for stage, microbatch in np.argwhere(chosen).tolist():
            yield (stage, microbatch), self.fused(stage, microbatch)

    def _imply_same(self, condition: Literal, left: Literal, right: Literal) -> None:
        if not (isinstance(left, bool) and isinstance(right, bool) and left == right):
            self.model.add_bool_or([~condition, _negated(left), right])
            self.model.add_bool_or([~condition, left, _negated(right)])

    def before(self, first: Op, second: Op) -> Literal:
        """Return whether one op of a device runs before another: a constant where it is known."""
        if self.ops.must_precede(first, second):
            return True
        if self.ops.must_precede(second, first):
            return False
        if (first, second) not in self._before:
            literal = self.model.new_bool_var("")
            self._before[first, second] = literal
            self._before[second, first] = ~literal
        return self._before[first, second]

    def _wait_for_inputs(self) -> None:
        stages = self.instance.stages
        for microbatch in range(self.instance.microbatches):
            for stage in range(stages):
                descent = int(self._least.descent[stage, microbatch])
                self._follow((F, stage, microbatch), (B, stage, microbatch), descent)
                if (W, stage, microbatch) in self.start:
                    self._follow((B, stage, microbatch), (W, stage, microbatch))
            for stage, lag in enumerate(self.instance.forward_lag.tolist()):
                self._follow((F, stage, microbatch), (F, stage + 1, microbatch), lag)
            for stage, lag in enumerate(self.instance.backward_lag.tolist()):
                self._follow((B, stage + 1, microbatch), (B, stage, microbatch), lag)

    def _follow(self, first: Op, second: Op, lag: int = 0) -> Any:
        return self.model.add(self.start[second] >= self._end(first) + lag)

    def _one_op_at_a_time(self) -> None:
        for device in self.devices:
            self._share_time(device)
            for first, second in self.ops.pairs(device):
                literal = self.before(first, second)
                self._follow(first, second).only_enforce_if(literal)
                self._follow(second, first).only_enforce_if(~literal)

    def _share_time(self, device: int) -> None:
        """Say of all ops at once that they take turns: then proofs count what time is left."""
        self.model.add_no_overlap(map(self._interval, self.ops.on(device)))

    def _interval(self, op: Op) -> Any:
        size = self.size[op]
        if isinstance(size, int):
            return self.model.new_fixed_size_interval_var(self.start[op], size, "")
        self._open_end[op] = self.model.new_int_var(0, 2 * self.horizon, "")
        return self.model.new_interval_var(self.start[op], size, self._open_end[op], "")

    def _keep_sequences(self) -> None:
        """Equal microbatches follow each other; what precedes one op precedes the next of its kind."""
        if not self.ops.equal_microbatches:
            return
        for device in range(self.instance.devices):
            ops = [op for op in self.ops.on(device) if op in self.start]
            for op in ops:
                after = (*op[:2], op[2] + 1)
                if after not in self.start or not self.ops.must_precede(op, after):
                    continue
                self._follow(op, after)
                for other in ops:
                    if other[:2] != op[:2] and device in self.devices:
                        self._imply(self.before(other, op), self.before(other, after))

    def _imply(self, left: Literal, right: Literal) -> None:
        if left is not False and right is not True:
            self.model.add_bool_or([_negated(left), right])

    def _fit_memory(self) -> None:
        for device in self.devices:
            if self.instance.room[device] != UNLIMITED:
                if self._counts_suffice(device):
                    self._fit_counts(device)
                    continue
                ops = self.ops.on(device)
                lowest = min(int(self.instance.peak[stage].min()) for stage in self.instance.stages_of[device])
                for op in ops:
                    if op[0] == F or self._holds(op) or self.instance.peak[op[1], op[2]] > lowest:
                        self._fit_one(device, op, ops)

    def _counts_suffice(self, device: int) -> bool:
        """Return whether only F takes memory and every microbatch takes the same: then counts of ops say it all."""
        stage, *others = self.instance.stages_of[device]
        return (
            not others
            and self.ops.equal_microbatches
            and not self.ops.choice[stage].any()
            and (int(self.instance.hold[B, stage, 0]) == 0 or not self.ops.has_weight(stage))
        )

    def _fit_counts(self, device: int) -> None:
        """Let F number k wait for enough B and W, as clauses: with at most b B before it, at least so many W."""
        (stage,) = self.instance.stages_of[device]
        instance = self.instance
        m_b = int(instance.hold[F, stage, 0])
        m_w = int(instance.release[W, stage, 0]) if self.ops.has_weight(stage) else 0
        room = int(instance.room[device]) - int(instance.peak[stage, 0])
        for number in range(instance.microbatches):
            excess = (number + 1) * m_b - room
            fewest = max(0, -(-excess // m_b)) if m_b else 0
            if fewest:
                self._imply(True, self.before((B, stage, fewest - 1), (F, stage, number)))
            for done in range(fewest, number + 1):
                left = excess - done * (m_b - m_w)
                if left <= 0 or not m_w:
                    break
                enough = self.before((W, stage, -(-left // m_w) - 1), (F, stage, number))
                more = done < number and self.before((B, stage, done), (F, stage, number))
                self.model.add_bool_or([enough, more])

    def _fit_one(self, device: int, op: Op, ops: list[Op]) -> None:
        """Limit what is live inside an op: what earlier ops hold and have not released, and what it adds."""
        constant = int(self.instance.peak[op[1], op[2]])
        terms: list[Any] = []
        for other in ops:
            literal = True if other == op else self.before(other, op)
            change = self._holds(other) if other == op else self._keeps(other)
            if literal is True:
                terms.append(change)
            elif literal is not False and change:
                terms.append(change * literal)
        if op[0] == B and self._holds(op) and self.ops.choice[op[1], op[2]]:
            terms.append(-self._holds(op) * self.fused(op[1], op[2]))
        room = int(self.instance.room[device])
        limit = self.model.add(cp_model.LinearExpr.sum(terms) + constant <= room)
        if op[0] == W and self.ops.choice[op[1], op[2]]:
            limit.only_enforce_if(~self.fused(op[1], op[2]))

    def _holds(self, op: Op) -> int:
        kind, stage, microbatch = op
        return int(self.instance.hold[kind, stage, microbatch]) if self.ops.has_weight(stage) or kind == F else 0

    def _keeps(self, op: Op) -> int:
        """Return how much more is live after an op than before it."""
        kind, stage, microbatch = op
        kind = BW if kind == B and not self.ops.has_weight(stage) else kind
        return int(self.instance.hold[kind, stage, microbatch]) - int(self.instance.release[kind, stage, microbatch])

    def _set_objective(self) -> None:
        self.objective = self.model.new_int_var(min(self._lowest, self._upper), self._upper, "iteration")
        for device in self.devices if self.instance.post_validated else range(self.instance.devices):
            ops = [op for op in self.ops.on(device) if op in self.start]
            begin: Any = 0
            if self.instance.post_validated and device != self.instance.device_of[0]:
                begin = self.model.new_int_var(0, self.horizon, f"begin.{device}")
                self.model.add_hint(begin, int(self._hinted.start[self.incumbent.offsets[device]]))
                for op in ops:
                    if op[0] == F:
                        self.model.add(begin <= self.start[op])
            for op in ops:
                if not any(self.ops.must_precede(op, other) for other in ops):
                    self.model.add(self.objective >= self._end(op) - begin)
        self.model.add_hint(self.objective, self._upper)
        self.model.minimize(self.objective)

    def _hint(self) -> None:
        numbered = self.ops.numbered(self.incumbent)
        for (first, second), literal in self._before.items():
            if literal.index >= 0:
                self.model.add_hint(literal, numbered.position[first] < numbered.position[second])
        for cell, literal in self._fused.items():
            self.model.add_hint(literal, cell in numbered.fused)
        for op, position in numbered.position.items():
            if op in self.start:
                at = int(self.incumbent.offsets[self.instance.device_of[op[1]]]) + position // 2
                behind_fused = position % 2
                time = self._hinted.end[at] if behind_fused else self._hinted.start[at]
                self.model.add_hint(self.start[op], int(time))
                if op in self._open_end:
                    self.model.add_hint(self._open_end[op], int(self._hinted.end[at]))

    def orders(self, value: Callable[[Any], int]) -> Orders:
        """Return the orders of a solution, read by ``value``."""
        return Orders.of([self._order(device, value) for device in range(self.instance.devices)])

    def _order(self, device: int, value: Callable[[Any], int]) -> list[int]:
        ops = [op for op in self.ops.on(device) if op[0] != W or not self._is_fused(op[1], op[2], value)]
        return [self._code(op, value) for op in sorted(ops, key=lambda op: value(self.start[op]))]

    def _code(self, op: Op, value: Callable[[Any], int]) -> int:
        kind, stage, microbatch = op
        fused = kind == B and self._is_fused(stage, microbatch, value)
        return self.instance.code(BW if fused else kind, stage, microbatch)

    @staticmethod
    def _is_true(literal: Literal, value: Callable[[Any], int]) -> bool:
        return literal if isinstance(literal, bool) else bool(value(literal))

    def _is_fused(self, stage: int, microbatch: int, value: Callable[[Any], int]) -> bool:
        return self._is_true(self.fused(stage, microbatch), value)


def _negated(literal: Literal) -> Literal:
    return not literal if isinstance(literal, bool) else ~literal


class _Stream(cp_model.CpSolverSolutionCallback):
    def __init__(self, model: Model, tell: Callable[[Orders], None]) -> None:
        super().__init__()
        self._model, self._tell = model, tell

    def on_solution_callback(self) -> None:
        self._tell(self._model.orders(self.value))


@dataclass
class Listener:
    """Who is told of better orders and bounds while CP-SAT runs."""

    on_orders: Callable[[Orders], None] = field(default=lambda orders: None)
    on_bound: Callable[[int], None] = field(default=lambda bound: None)


def solve_cp_sat(
    instance: Instance,
    incumbent: Orders,
    *,
    bound: int = 0,
    time_limit_s: float,
    settings: Settings | None = None,
    listener: Listener | None = None,
    devices: Iterable[int] | None = None,
) -> Outcome:
    """Search for better orders and better bounds until the time is up or the gap is closed.

    Parameters
    ----------
    incumbent
        Legal orders to start from.
    bound
        A proven lower bound in ticks.
    devices
        See ``Model``.
    """
    settings, listener = settings or Settings(), listener or Listener()
    model = Model(instance, incumbent, bound, devices)
    built = model.build()
    solver = _solver(settings, time_limit_s)
    solver.parameters.cp_model_presolve = model.may_presolve
    solver.best_bound_callback = lambda units: listener.on_bound(model.axis.bound(units))
    status = solver.solve(built, _Stream(model, listener.on_orders) if model.complete else None)
    found = status in (cp_model.OPTIMAL, cp_model.FEASIBLE)
    return Outcome(
        orders=model.orders(solver.value) if found and model.complete else None,
        bound=max(bound, model.axis.bound(solver.best_objective_bound)) if found else bound,
        status=solver.status_name(status),
    )


def _solver(settings: Settings, time_limit_s: float) -> cp_model.CpSolver:
    solver = cp_model.CpSolver()
    parameters = solver.parameters
    parameters.max_time_in_seconds = time_limit_s
    parameters.num_workers = settings.workers
    parameters.random_seed = settings.seed
    parameters.linearization_level = 0
    parameters.cp_model_probing_level = 0
    parameters.symmetry_level = 0
    if settings.log is not None:
        parameters.log_search_progress = True
        parameters.log_to_stdout = False
        solver.log_callback = settings.log
    return solver
