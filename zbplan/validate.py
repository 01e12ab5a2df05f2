"""Validate: every way a plan can be wrong, each with its own name.

A plan is judged from its own columns against the problem that it carries. Nothing that built it is trusted: times are
checked one by one, memory is added up anew, metrics and ids are computed again.
"""

from __future__ import annotations

import math
from collections.abc import Iterator
from dataclasses import dataclass

import numpy as np

from zbplan.errors import DeadlockError, InvalidInputError, InvalidPlanError
from zbplan.instance import BW, KINDS, UNLIMITED, B, BoolArray, F, Instance, IntArray, Orders, W
from zbplan.placement import custom
from zbplan.plan import Bound, DeviceOps, Plan, metrics_of, plan_id, requirements
from zbplan.simulate import Schedule, measure, memory_curve, simulate


@dataclass(frozen=True)
class Violation:
    """One way in which a plan is wrong.

    Attributes
    ----------
    code
        The name of the error, such as ``forward_before_input``.
    path
        JSON path of the op, column or field.
    found, needed
        What stands there and what would be right.
    """

    code: str
    path: str
    found: str
    needed: str

    def __str__(self) -> str:
        return f"{self.code} at {self.path}: found {self.found}; needed {self.needed}"


def check(plan: Plan) -> Plan:
    """Return the plan if it is legal.

    Raises
    ------
    InvalidPlanError
        With every violation found.
    """
    violations = validate(plan)
    if violations:
        raise InvalidPlanError(violations)
    return plan


def validate(plan: Plan) -> list[Violation]:
    """Return every violation of a plan; an empty list means that it is legal.

    Later checks need what earlier ones establish, so a plan whose columns cannot be read is judged only that far.
    """
    violations = [*_problem(plan)] or [*_identity(plan), *_placement(plan)]
    if violations:
        return violations
    instance = plan.instance()
    violations = [*_columns(plan, instance)]
    if violations:
        return violations
    judge = _Judge(plan, instance)
    violations = [*judge.completeness(), *judge.times(), *judge.dependencies(), *judge.memory()]
    return violations or [*judge.progress(), *judge.metrics(), *_bound(plan), *_identifier(plan)]


def _of(code: str, path: str, found: object, needed: object) -> Violation:
    return Violation(code, path, str(found), str(needed))


def _problem(plan: Plan) -> Iterator[Violation]:
    try:
        _ = plan.asked
    except InvalidInputError as error:
        for item in error.findings:
            yield _of("problem", f"$.problem{item.path[1:]}", item.found, item.needed)
        return
    try:
        _ = plan.planned
    except InvalidInputError as error:
        for item in error.findings:
            path = item.path if item.path.startswith("$.placement") else "$.requires.starts"
            yield _of("cut", path, item.found, item.needed)


def _identity(plan: Plan) -> Iterator[Violation]:
    if plan.problem != plan.asked.canonical:
        yield _of(
            "problem", "$.problem", "a problem that is not in canonical form", "defaults filled in, arrays expanded"
        )
    if plan.key != plan.asked.key:
        yield _of("key", "$.key", plan.key, f"{plan.asked.key}, the key of the problem inside")
    starts = None if plan.asked.open_layers is None else plan.requires.starts
    needed = requirements(plan.planned).model_copy(update={"starts": starts})
    if plan.requires != needed:
        yield _of("requires", "$.requires", plan.requires, needed)


def _placement(plan: Plan) -> Iterator[Violation]:
    problem = plan.planned
    try:
        placed = custom(plan.placement, problem.profile.stages, problem.devices)
    except InvalidInputError as error:
        for item in error.findings:
            yield _of("placement", item.path, item.found, item.needed)
        return
    if placed not in plan.asked.placements or placed != plan.placement:
        yield _of("placement", "$.placement", plan.placement, f"what the problem asks for: {plan.asked.placement}")
    if len(plan.devices) != problem.devices:
        yield _of("column_length", "$.devices", f"{len(plan.devices)} devices", problem.devices)


def _columns(plan: Plan, instance: Instance) -> Iterator[Violation]:
    for device, ops in enumerate(plan.devices):
        path = f"$.devices[{device}]"
        lengths = {name: len(getattr(ops, name)) for name in DeviceOps.model_fields}
        if len(set(lengths.values())) > 1:
            yield _of("column_length", path, lengths, "columns of one length")
            continue
        yield from _values(ops, instance, path)


def _values(ops: DeviceOps, instance: Instance, path: str) -> Iterator[Violation]:
    known = set(KINDS)
    for at, kind in enumerate(ops.kind):
        if kind not in known:
            yield _of("unknown_kind", f"{path}.kind[{at}]", repr(kind), f"one of {', '.join(KINDS)}")
    for name, count in (("stage", instance.stages), ("microbatch", instance.microbatches)):
        for at, value in enumerate(getattr(ops, name)):
            if not 0 <= value < count:
                yield _of(f"unknown_{name}", f"{path}.{name}[{at}]", value, f"0 to {count - 1}")
    horizon_ms = instance.clock.value(1 << 53)
    for name in ("start_ms", "end_ms"):
        for at, value in enumerate(getattr(ops, name)):
            if not 0 <= value < horizon_ms:
                yield _of(
                    "time_range", f"{path}.{name}[{at}]", f"{value} ms", f"a time from 0 to below {horizon_ms} ms"
                )


class _Judge:
    """The ops of a plan whose columns can be read, as flat arrays."""

    def __init__(self, plan: Plan, instance: Instance) -> None:
        self.plan = plan
        self.instance = instance
        self.orders: Orders = plan.orders()
        self.device = np.repeat(np.arange(instance.devices), np.diff(self.orders.offsets))
        self.start = instance.clock.many(time for ops in plan.devices for time in ops.start_ms)
        self.end = instance.clock.many(time for ops in plan.devices for time in ops.end_ms)
        self.kind, self.cell = np.divmod(self.orders.ops, instance.stages * instance.microbatches)
        self.stage, self.microbatch = np.divmod(self.cell, instance.microbatches)

    def _path(self, at: int) -> str:
        return f"$.devices[{self.device[at]}] op {at - self.orders.offsets[self.device[at]]}"

    def _name(self, at: int) -> str:
        return self.instance.name(self.orders.ops[at])

    def _ms(self, ticks: int) -> str:
        return f"{self.instance.clock.value(ticks)} ms"

    def completeness(self) -> Iterator[Violation]:
        """Each stage and microbatch: F once, then B and W once each or BW once, on the stage's device."""
        instance = self.instance
        wrong = self.device != instance.device_of[self.stage]
        for at in np.flatnonzero(wrong).tolist():
            needed = f"device {instance.device_of[self.stage[at]]}, which holds stage {self.stage[at]}"
            yield _of("wrong_device", self._path(at), self._name(at), needed)
        shape = (len(KINDS), instance.stages, instance.microbatches)
        count = np.bincount(self.orders.ops, minlength=math.prod(shape)).reshape(shape)
        yield from self._counts(count)
        unsplit = np.isin(self.kind, (B, W)) & ~instance.splittable[self.stage]
        for at in np.flatnonzero(unsplit).tolist():
            yield _of("unsplittable_stage", self._path(at), self._name(at), f"BW: stage {self.stage[at]} cannot split")

    def _counts(self, count: IntArray) -> Iterator[Violation]:
        for op in np.flatnonzero(count.ravel() > 1).tolist():
            yield _of("duplicate_op", "$.devices", f"{self.instance.name(op)} {count.ravel()[op]} times", "once")
        split = (count[B] > 0) | (count[W] > 0)
        for cell in np.flatnonzero((split & (count[BW] > 0)).ravel()).tolist():
            name = self.instance.name(self.instance.code(BW, 0, 0) + cell)
            yield _of("mixed_backward", "$.devices", f"{name} beside its B or W", "either BW, or B and W")
        fused = count[BW] > 0
        for kind, there in ((F, count[F] > 0), (B, fused | (count[B] > 0)), (W, fused | (count[W] > 0))):
            for cell in np.flatnonzero(~there.ravel()).tolist():
                name = self.instance.name(self.instance.code(kind, 0, 0) + cell)
                yield _of("missing_op", "$.devices", f"no {name}", "every op once")

    def times(self) -> Iterator[Violation]:
        """Every op lasts as long as profiled, and a device runs one op at a time, in the order of the columns."""
        yield from self._off_clock()
        duration = self.instance.duration.ravel()[self.orders.ops]
        for at in np.flatnonzero(self.end - self.start != duration).tolist():
            found = f"{self._name(at)} lasting {self._ms(int(self.end[at] - self.start[at]))}"
            yield _of("wrong_duration", self._path(at), found, self._ms(int(duration[at])))
        same = self.device[1:] == self.device[:-1]
        for at in (np.flatnonzero(same & (self.start[1:] < self.end[:-1])) + 1).tolist():
            found = f"{self._name(at)} starting at {self._ms(int(self.start[at]))}"
            needed = f"the end of {self._name(at - 1)} at {self._ms(int(self.end[at - 1]))}"
            yield _of("overlap", self._path(at), found, needed)

    def _off_clock(self) -> Iterator[Violation]:
        for name, ticks in (("start_ms", self.start), ("end_ms", self.end)):
            written = [time for ops in self.plan.devices for time in getattr(ops, name)]
            for at, (found, needed) in enumerate(zip(written, self.instance.clock.values(ticks), strict=True)):
                if found != needed:
                    yield _of("off_clock", f"{self._path(at)} {name}", f"{found!r} ms", f"whole ticks: {needed!r} ms")

    def dependencies(self) -> Iterator[Violation]:
        """F after the F before it, B and BW after their F and the gradient, W after its B, with transfer times."""
        f_end, b_end = self._ends(F), np.maximum(self._ends(B), self._ends(BW))
        width, last = self.instance.microbatches, self.instance.stages - 1
        forward, backward = self.instance.forward_lag, self.instance.backward_lag
        fed = (self.kind == F) & (self.stage > 0)
        yield from self._late(fed, f_end, self.cell - width, forward, self.stage - 1, "forward_before_input")
        gradient = np.isin(self.kind, (B, BW))
        yield from self._late(gradient, f_end, self.cell, None, None, "backward_before_forward")
        given = gradient & (self.stage < last)
        yield from self._late(given, b_end, self.cell + width, backward, self.stage, "backward_before_gradient")
        yield from self._late(self.kind == W, b_end, self.cell, None, None, "weight_before_backward")

    def _ends(self, kind: int) -> IntArray:
        ends = np.full(self.instance.stages * self.instance.microbatches, -1, dtype=np.int64)
        ends[self.cell[self.kind == kind]] = self.end[self.kind == kind]
        return ends

    def _late(
        self,
        who: BoolArray,
        produced: IntArray,
        producer: IntArray,
        lag: IntArray | None,
        boundary: IntArray | None,
        code: str,
    ) -> Iterator[Violation]:
        ops = np.flatnonzero(who)
        ready = produced[producer[ops]]
        there = ready >= 0
        ops, ready = ops[there], ready[there]
        arrival = ready if lag is None or boundary is None else ready + lag[boundary[ops]]
        for at, end, needed in zip(ops.tolist(), ready.tolist(), arrival.tolist(), strict=True):
            begin = int(self.start[at])
            if begin < needed:
                name = code if begin < end else "transfer_ignored"
                found = f"{self._name(at)} starting at {self._ms(begin)}"
                yield _of(name, self._path(at), found, f"its input, there at {self._ms(needed)}")

    def memory(self) -> Iterator[Violation]:
        """No device ever holds more than its limit; the first op over it is named."""
        instance = self.instance
        for device in range(instance.devices):
            room = int(instance.room[device])
            if room == UNLIMITED:
                continue
            limit = room + int(instance.static[device])
            curve = memory_curve(instance, self.orders.on(device), device)
            over = np.flatnonzero(curve > limit)
            if len(over):
                at = int(self.orders.offsets[device] + over[0])
                found = f"{instance.memory.value(curve[over[0]])} bytes in use in {self._name(at)}"
                yield _of("memory_limit", self._path(at), found, f"at most {instance.memory.value(limit)} bytes")

    def progress(self) -> Iterator[Violation]:
        """Check that the orders can run: ops without duration may have legal times and still wait in a circle."""
        try:
            simulate(self.instance, self.orders)
        except DeadlockError as error:
            yield _of("deadlock", "$.devices", "; ".join(error.waiting), "orders in which every op's inputs come first")

    def metrics(self) -> Iterator[Violation]:
        """Check that the metrics are those of the ops."""
        needed = metrics_of(self.instance, measure(self.instance, Schedule(self.orders, self.start, self.end)))
        for name, value in needed:
            found = getattr(self.plan.metrics, name)
            if found != value:
                yield _of("metrics", f"$.metrics.{name}", found, value)


def _bound(plan: Plan) -> Iterator[Violation]:
    iteration_ms = plan.metrics.iteration_ms
    if plan.bound.iteration_ms > iteration_ms:
        needed = f"at most the plan's own {iteration_ms} ms"
        yield _of("bound", "$.bound.iteration_ms", f"{plan.bound.iteration_ms} ms", needed)
    right = Bound.of(plan.bound.iteration_ms, iteration_ms, plan.bound.reason)
    if plan.bound != right:
        yield _of("bound", "$.bound", plan.bound, right)


def _identifier(plan: Plan) -> Iterator[Violation]:
    needed = plan_id(plan.problem, plan.placement, plan.devices, plan.requires.starts)
    if plan.plan_id != needed:
        yield _of("plan_id", "$.plan_id", plan.plan_id, f"{needed}, the digest of problem, placement and ops")
