"""Near: plans of problems that differ from a new one only in what was measured.

Times are measured anew at each start of a job and jitter by a little, so that its problem is never quite the one that
was solved before. The orders of the plan found then mostly do as well.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from contextlib import suppress

import numpy as np
from numpy.typing import NDArray

from solver import lower_bound
from zbplan.errors import Finding, InvalidInputError, ZbplanError
from zbplan.plan import Plan, requirements
from zbplan.problem import Problem
from zbplan.profile import PER_STAGE
from zbplan.record import digest
from zbplan.validate import check

METHOD = "reused"


def shape_of(problem: Problem) -> str:
    """Return the digest of all of a problem that near ones share: everything but times, memory and planner revision."""
    profile, layers = problem.profile, problem.open_layers
    return digest(
        {
            **({} if layers is None else {"layers": layers.count}),
            "devices": problem.devices,
            "stages": profile.stages,
            "microbatches": problem.microbatches,
            "placements": problem.placements,
            "optimizer": problem.optimizer,
            "method": problem.method,
            "engine_mode": profile.engine_mode,
            "splits": profile.splits(),
        }
    )


def measures_of(problem: Problem) -> NDArray[np.float32]:
    """Return what was measured, as as many numbers as every problem of its shape has."""
    comm = problem.profile.comm()
    per_stage = [np.mean(entry) for name in PER_STAGE for entry in problem.canonical_profile[name]]
    return np.array([*per_stage, *comm.forward, *comm.backward], dtype=np.float32)


def distance(one: NDArray[np.float32], other: NDArray[np.float32]) -> float:
    """Return the largest difference between two profiles' measures, relative to the larger of the two."""
    larger = np.maximum(np.abs(one), np.abs(other))
    return float(np.max(np.abs(one - other) / np.where(larger > 0, larger, 1), initial=0))


def reused(problem: Problem, plans: Iterable[bytes]) -> Iterator[Plan]:
    """Yield plans for a problem with the orders of stored plans, but for those that cannot be read or are not legal."""
    for text in plans:
        with suppress(ZbplanError):
            near = Plan.parse_json(text)
            if near.placement in problem.placements and (problem.open_layers is None) == (near.requires.starts is None):
                yield _rebuilt(problem, near)


def _rebuilt(problem: Problem, near: Plan) -> Plan:
    """Return the plan with the orders, and the cut of open layers, of another.

    Raises
    ------
    ZbplanError
        If either is not legal, or needs what the other does not have.
    """
    # Whichever planner revision its key is of.
    check(near.model_copy(update={"key": near.asked.key}))
    starts = near.requires.starts
    cut = problem if starts is None else problem.cut(starts, near.placement)
    if (found := near.requires.model_copy(update={"starts": None})) != (needed := requirements(cut)):
        raise InvalidInputError([Finding("$.requires", repr(found), repr(needed))])
    bound = lower_bound(instance := cut.instance(near.placement))
    plan = Plan.build(
        cut,
        near.placement,
        near.orders(),
        method=METHOD,
        bound_ms=instance.clock.value(bound.ticks),
        reason=bound.reason,
        warm_start=f"plan {near.plan_id}",
    )
    return check(plan if starts is None else plan.answering(problem, starts))
