"""Joined: a plan and a trace of it, op by op, as arrays."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from functools import cached_property
from typing import Self

import numpy as np
import numpy.typing as npt

from zbplan.errors import Finding, InvalidInputError
from zbplan.instance import KINDS, Instance, IntArray, Orders
from zbplan.plan import Plan
from zbplan.simulate import inputs
from zbplan.trace import DeviceTrace, Span, StepTrace, Trace

FloatArray = npt.NDArray[np.float64]

WARM_UP_STEPS = 2
"""First steps of a job, which allocate, load and compile: they are left out where there are others."""

MOST_INPUTS = 2
NOTHING = -1


@dataclass(frozen=True, eq=False)
class Joined:
    """The ops of a plan, device after device in the plan's order, and when they ran in each step of a trace.

    All times are milliseconds; those of a step count from the first start of its ops, those of the plan from its own.

    Attributes
    ----------
    plan, instance, steps
        What was joined; of the trace the steady steps, or all if it has no others.
    is_warm
        False if the steps are a job's first.
    ops : int64[n]
        Op integers (``Instance.code``).
    device : int64[n]
        Where each op runs.
    planned_start, planned_end : float64[n]
        The plan's times.
    start, end : float64[steps, n]
        When each op ran.
    wait_start, wait_end : float64[steps, n]
        The wait for what an op receives from another device; NaN where it receives nothing.
    sending : float64[steps, n]
        How long it took to post the result of an op.
    """

    plan: Plan
    instance: Instance
    steps: tuple[StepTrace, ...]
    is_warm: bool
    ops: IntArray
    device: IntArray
    planned_start: FloatArray
    planned_end: FloatArray
    start: FloatArray
    end: FloatArray
    wait_start: FloatArray
    wait_end: FloatArray
    sending: FloatArray

    @classmethod
    def of(cls, plan: Plan, trace: Trace) -> Self:
        """Join a legal plan with a trace of it.

        Raises
        ------
        InvalidInputError
            If the trace is of another plan, or a device did not run its ops in the plan's order.
        """
        if trace.plan_id != plan.plan_id:
            raise InvalidInputError([Finding("$.plan_id", trace.plan_id, f"{plan.plan_id}, that of the plan")])
        if findings := [finding for at, step in enumerate(trace.steps) for finding in _other_ops(plan, at, step)]:
            raise InvalidInputError(findings)
        warm = tuple(step for step in trace.steps if step.step >= WARM_UP_STEPS)
        steps = warm or tuple(trace.steps)
        instance, orders = plan.instance(), plan.orders()
        columns = np.stack([_columns(instance, orders, step) for step in steps], axis=1)
        planned_start = np.concatenate([np.array(own.start_ms) for own in plan.devices])
        planned_end = np.concatenate([np.array(own.end_ms) for own in plan.devices])
        return cls(
            plan,
            instance,
            steps,
            bool(warm),
            orders.ops,
            np.repeat(np.arange(instance.devices), np.diff(orders.offsets)),
            planned_start - planned_start.min(),
            planned_end - planned_start.min(),
            *columns,
        )

    @property
    def planned_ms(self) -> FloatArray:
        """How long the plan says that each op takes: float64[n]."""
        return self.planned_end - self.planned_start

    @property
    def took_ms(self) -> FloatArray:
        """How long each op took: float64[steps, n]."""
        return self.end - self.start

    @property
    def waited_ms(self) -> FloatArray:
        """How long a device stood still for what an op receives: float64[steps, n]."""
        return np.nan_to_num(self.wait_end - self.wait_start)

    @property
    def dependency_wait_ms(self) -> FloatArray:
        """The same, from the first start of all ops on, as the plan counts it: float64[steps, n]."""
        return np.asarray(np.nan_to_num(np.maximum(0.0, self.wait_end) - np.maximum(0.0, self.wait_start)))

    @cached_property
    def kind(self) -> IntArray:
        """Index in ``KINDS`` of each op: int64[n]."""
        return self.ops // (self.instance.stages * self.instance.microbatches)

    @cached_property
    def stage(self) -> IntArray:
        """Stage of each op: int64[n]."""
        return self.ops // self.instance.microbatches % self.instance.stages

    @cached_property
    def microbatch(self) -> IntArray:
        """Microbatch of each op: int64[n]."""
        return self.ops % self.instance.microbatches

    def name(self, at: int) -> str:
        """Return an op as text for people."""
        return self.instance.name(self.ops[at])

    def free(self, end: FloatArray) -> FloatArray:
        """Return when the device of each op has ended the one before; 0 for a device's first: float64[…, n]."""
        before = np.roll(end, 1, axis=-1)
        before[..., np.diff(self.device, prepend=NOTHING) != 0] = 0.0
        return before

    def ready(self, end: FloatArray) -> FloatArray:
        """Return when all that each op needs is there, if transfers take T_comm: float64[…, n]."""
        found = np.zeros_like(end)
        for producer, lag_ms in self._inputs:
            has = producer != NOTHING
            found[..., has] = np.maximum(found[..., has], end[..., producer[has]] + lag_ms[has])
        return found

    @cached_property
    def received_from(self) -> IntArray:
        """The op on another device whose result each op receives, as an index: int64[n]; -1 where there is none."""
        found = np.full(len(self.ops), NOTHING)
        for producer, _ in self._inputs:
            other = (producer != NOTHING) & (self.device[producer] != self.device)
            found[other] = producer[other]
        return found

    @cached_property
    def _inputs(self) -> list[tuple[IntArray, FloatArray]]:
        """Up to two inputs of each op: the index of the op that makes it, or -1, and T_comm."""
        index = {op: at for at, op in enumerate(self.ops.tolist())}
        producers = np.full((MOST_INPUTS, len(self.ops)), NOTHING)
        lags = np.zeros((MOST_INPUTS, len(self.ops)))
        for at, op in enumerate(self.ops.tolist()):
            for slot, (candidates, lag) in enumerate(inputs(self.instance, op)):
                producers[slot, at] = next(index[candidate] for candidate in candidates if candidate in index)
                lags[slot, at] = self.instance.clock.value(lag)
        return list(zip(producers, lags, strict=True))


def _other_ops(plan: Plan, at: int, step: StepTrace) -> Iterator[Finding]:
    if len(step.devices) != len(plan.devices):
        yield Finding(f"$.steps[{at}].devices", f"{len(step.devices)} devices", f"{len(plan.devices)}, as the plan has")
        return
    for device, (found, planned) in enumerate(zip(step.devices, plan.devices, strict=True)):
        ops = [span[:3] for span in found.ops()]
        needed = list(zip(planned.kind, planned.stage, planned.microbatch, strict=True))
        if ops != needed:
            differs = next((i for i, pair in enumerate(zip(ops, needed, strict=False)) if pair[0] != pair[1]), None)
            first = min(len(ops), len(needed)) if differs is None else differs
            yield Finding(f"$.steps[{at}].devices[{device}], op {first}", _op(ops, first), _op(needed, first))


def _op(ops: list[tuple[str, int, int]], at: int) -> str:
    return str(Span(*ops[at], 0.0, 0.0)) if at < len(ops) else "none"


def _columns(instance: Instance, orders: Orders, step: StepTrace) -> FloatArray:
    """Return start, end, begin and end of the wait, and posting time of each op of a step: float64[5, n]."""
    parts = [_of_device(instance, columns) for columns in step.devices]
    columns = np.concatenate(parts, axis=1)
    columns[:4] -= columns[0].min()
    return columns


def _of_device(instance: Instance, columns: DeviceTrace) -> FloatArray:
    spans = columns.spans()
    at = {span[:3]: span for span in spans}
    rows = [(*span[3:], *_wait(span, at), _sending(span, at)) for span in spans if span.kind in KINDS]
    return np.array(rows, dtype=np.float64).reshape(-1, 5).T


Rows = dict[tuple[str, int, int], Span]


def _wait(op: Span, at: Rows) -> tuple[float, float]:
    letter = {"F": "F", "B": "B", "BW": "B"}.get(op.kind)
    found = at.get((f"RECV_{letter}", op.stage, op.microbatch))
    return (found.start_ms, found.end_ms) if found else (np.nan, np.nan)


def _sending(op: Span, at: Rows) -> float:
    letter = {"F": "F", "B": "B", "BW": "B"}.get(op.kind)
    found = at.get((f"SEND_{letter}", op.stage, op.microbatch))
    return found.end_ms - found.start_ms if found else 0.0
