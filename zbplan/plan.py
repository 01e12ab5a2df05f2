"""Plan: placement, orders, times, metrics and bound; what is stored, served and run."""

from __future__ import annotations

from collections.abc import Sequence
from functools import cached_property
from typing import Annotated, Any, Literal, Self

import numpy as np
from pydantic import Field

from zbplan.instance import KINDS, Instance, Orders
from zbplan.placement import Placement
from zbplan.problem import REVISION, Problem
from zbplan.profile import EngineMode
from zbplan.record import Record, digest
from zbplan.simulate import Measures, Schedule, measure
from zbplan.tighten import tighten

PROVEN_GAP = 1e-6
"""A gap up to this counts as proven optimal."""


class DeviceOps(Record):
    """What one device runs, as columns in execution order; times in milliseconds."""

    kind: list[str]
    stage: list[int]
    microbatch: list[int]
    start_ms: list[float]
    end_ms: list[float]


class Metrics(Record):
    """What the plan costs; lists have one entry per device.

    ``iteration_ms`` is what the objective minimises, ``bubble_rate`` is 1 − busiest device's work / iteration_ms.
    """

    iteration_ms: float
    makespan_ms: float
    bubble_rate: float
    mean_idle_rate: float
    peak_bytes: list[float]
    busy_ms: list[float]


class Bound(Record):
    """A proven lower bound on iteration_ms over all legal schedules on this placement."""

    iteration_ms: float
    gap: float
    proven_optimal: bool
    reason: str

    @classmethod
    def of(cls, bound_ms: float, iteration_ms: float, reason: str) -> Self:
        """Compare a bound with what a plan takes."""
        gap = max(0.0, 1 - bound_ms / iteration_ms) if iteration_ms > 0 else 0.0
        return cls(iteration_ms=bound_ms, gap=gap, proven_optimal=gap <= PROVEN_GAP, reason=reason)


class Requires(Record):
    """What a job must have to run the plan.

    Attributes
    ----------
    starts
        The first layer of each stage, where the problem left the cut open; None where it gave the stages.
    """

    devices: int
    stages: int
    microbatches: int
    engine_mode: EngineMode
    starts: list[int] | None = None


class PartRun(Record):
    """What one part of a solve did: how long it ran, and how that ended, in words for people."""

    part: str
    ran_s: Annotated[float, Field(ge=0)]
    outcome: str


class Provenance(Record):
    """How the plan came about; not part of its identity.

    Attributes
    ----------
    method
        The schedule or the part of a solve that made the orders.
    warm_start
        The method of the plan that it started from; ``plan <id>`` for one that was handed to the solver.
    solve_s
        Wall-clock seconds until the plan was found.
    parts
        Every part that ran, in sequence.
    """

    method: str
    warm_start: str | None = None
    solve_s: Annotated[float, Field(ge=0)] = 0.0
    revision: int = REVISION
    parts: list[PartRun] = Field(default_factory=list)


class Plan(Record):
    """A complete plan; ``validate`` says whether it is legal."""

    format: Literal["zbplan.plan/1"] = "zbplan.plan/1"
    plan_id: str
    key: str
    problem: dict[str, Any]
    placement: Placement
    devices: list[DeviceOps]
    metrics: Metrics
    bound: Bound
    requires: Requires
    provenance: Provenance

    @classmethod
    def build(
        cls,
        problem: Problem,
        placement: Placement,
        orders: Orders,
        *,
        method: str,
        bound_ms: float = 0.0,
        reason: str = "none computed",
        warm_start: str | None = None,
        solve_s: float = 0.0,
    ) -> Self:
        """Give orders their best times and write the result down.

        Raises
        ------
        DeadlockError
            If the orders cannot run.
        """
        instance = problem.instance(placement)
        schedule = tighten(instance, orders)
        devices = columns(instance, schedule)
        metrics = metrics_of(instance, measure(instance, schedule))
        return cls(
            plan_id=plan_id(problem.canonical, placement, devices),
            key=problem.key,
            problem=problem.canonical,
            placement=placement,
            devices=devices,
            metrics=metrics,
            bound=Bound.of(bound_ms, metrics.iteration_ms, reason),
            requires=requirements(problem),
            provenance=Provenance(method=method, warm_start=warm_start, solve_s=solve_s),
        )

    def answering(self, asked: Problem, starts: Sequence[int]) -> Self:
        """Return this plan, made for one cut of the layers of ``asked``, as the answer to ``asked``."""
        return self.model_copy(
            update={
                "plan_id": plan_id(asked.canonical, self.placement, self.devices, starts),
                "key": asked.key,
                "problem": asked.canonical,
                "requires": self.requires.model_copy(update={"starts": list(starts)}),
            }
        )

    @cached_property
    def asked(self) -> Problem:
        """The problem that this plan answers, checked; raises ``InvalidInputError`` if it is not one."""
        return Problem.parse(self.problem)

    @cached_property
    def planned(self) -> Problem:
        """The problem that the ops solve: ``asked``, with its layers cut in this plan's stages where it left that open.

        Raises
        ------
        InvalidInputError
            If this plan's stages are no cut of the layers.
        """
        asked = self.asked
        return asked if asked.open_layers is None else asked.cut(self.requires.starts or [], self.placement)

    def instance(self) -> Instance:
        """Return the problem as integer arrays on this plan's placement."""
        return self.planned.instance(self.placement)

    def orders(self) -> Orders:
        """Return what each device runs, as op integers; the plan must be valid."""
        stages, microbatches = self.requires.stages, self.requires.microbatches
        code = {kind: index * stages * microbatches for index, kind in enumerate(KINDS)}
        return Orders.of(
            [
                np.array([code[kind] for kind in ops.kind], dtype=np.int64)
                + np.array(ops.stage, dtype=np.int64) * microbatches
                + np.array(ops.microbatch, dtype=np.int64)
                for ops in self.devices
            ]
        )

    def with_parts(self, parts: Sequence[PartRun]) -> Self:
        """Return the same plan with what the parts of its solve did."""
        return self.model_copy(update={"provenance": self.provenance.model_copy(update={"parts": list(parts)})})

    def with_bound(self, bound_ms: float, reason: str) -> Self:
        """Return the same plan with another bound."""
        return self.model_copy(update={"bound": Bound.of(bound_ms, self.metrics.iteration_ms, reason)})


def columns(instance: Instance, schedule: Schedule) -> list[DeviceOps]:
    """Return a schedule as one record of columns per device."""
    orders = schedule.orders
    kind, cell = np.divmod(orders.ops, instance.stages * instance.microbatches)
    stage, microbatch = np.divmod(cell, instance.microbatches)
    names = np.array(KINDS)[kind]
    parts = [slice(*orders.offsets[device : device + 2].tolist()) for device in range(instance.devices)]
    return [
        DeviceOps(
            kind=names[part].tolist(),
            stage=stage[part].tolist(),
            microbatch=microbatch[part].tolist(),
            start_ms=instance.clock.values(schedule.start[part]),
            end_ms=instance.clock.values(schedule.end[part]),
        )
        for part in parts
    ]


def metrics_of(instance: Instance, measures: Measures) -> Metrics:
    """Return what a schedule costs in milliseconds and bytes."""
    return Metrics(
        iteration_ms=instance.clock.value(measures.iteration),
        makespan_ms=instance.clock.value(measures.makespan),
        bubble_rate=measures.bubble_rate,
        mean_idle_rate=measures.mean_idle_rate,
        peak_bytes=[instance.memory.value(peak) for peak in measures.peak.tolist()],
        busy_ms=instance.clock.values(measures.busy),
    )


def requirements(problem: Problem) -> Requires:
    """Return what a job must have to run a plan for this problem, whose stages are given."""
    return Requires(
        devices=problem.devices,
        stages=problem.profile.stages,
        microbatches=problem.microbatches,
        engine_mode=problem.profile.engine_mode,
    )


def plan_id(
    problem: dict[str, Any], placement: Placement, devices: Sequence[DeviceOps], starts: Sequence[int] | None = None
) -> str:
    """Return the SHA-256, in hex, of problem, placement and op columns: the same schedule has the same id.

    The first layers of the stages count where the problem leaves them open.
    """
    ops = [record.model_dump() for record in devices]
    cut = {} if starts is None else {"starts": list(starts)}
    return digest({"problem": problem, "placement": placement, "devices": ops, **cut})
