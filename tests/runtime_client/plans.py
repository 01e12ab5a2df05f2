"""Plans for the tests: hand-written orders, and random legal ones, as complete plans."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from tests.strategies import random_orders
from zbplan.instance import BW, B, F, Orders, W
from zbplan.placement import Placement, linear
from zbplan.plan import Plan
from zbplan.problem import Problem

UNEVEN_MS = (7.0, 3.0, 5.0, 2.0, 6.0, 4.0, 3.0, 8.0)


def problem_of(placement: Placement, microbatches: int, **profile: Any) -> Problem:
    stages = sum(map(len, placement))
    times = {f"t_{kind}_ms": [UNEVEN_MS[(stage + at) % 8] for stage in range(stages)] for at, kind in enumerate("fbw")}
    fields = {"stages": stages, **times, "t_comm_ms": 0.5, "m_b_bytes": 2, "m_w_bytes": 1}
    return Problem.parse(
        {
            "profile": fields | profile,
            "devices": len(placement),
            "microbatches": microbatches,
            "placement": placement,
        }
    )


def plan_of(problem: Problem, orders: Orders) -> Plan:
    (placement,) = problem.placements
    return Plan.build(problem, placement, orders, method="heuristic")


def random_plan(placement: Placement, microbatches: int, seed: int, **profile: Any) -> Plan:
    problem = problem_of(placement, microbatches, **profile)
    return plan_of(problem, random_orders(problem.instance(), seed))


def one_f_one_b(devices: int, microbatches: int) -> Plan:
    return _alternating(devices, microbatches, [[(BW, 0)]] * devices)


def zb_h1(devices: int, microbatches: int) -> Plan:
    """1F1B with B and W apart: device d runs each W d microbatches after its B."""
    return _alternating(devices, microbatches, [[(B, 0), (W, device)] for device in range(devices)])


def _alternating(devices: int, microbatches: int, backward: Sequence[list[tuple[int, int]]]) -> Plan:
    """Warm up, then F and the backward ops in turn; each backward kind lags by a number of microbatches."""
    problem = problem_of(linear(devices), microbatches)
    code = problem.instance().code
    orders: list[list[int]] = []
    for device in range(devices):
        warm_up = devices - 1 - device
        ops: list[int] = []
        for turn in range(-warm_up, microbatches + devices):
            ops += [code(F, device, turn + warm_up)] if turn + warm_up < microbatches else []
            for kind, lag in backward[device]:
                ops += [code(kind, device, turn - lag)] if 0 <= turn - lag < microbatches else []
        orders.append(ops)
    return plan_of(problem, Orders.of(orders))


def open_plan() -> Plan:
    """Return a plan of another number of stages than the even cut that its problem's canonical form has."""
    layers = {"count": 6, "t_f_ms": [1, 2, 3, 4, 5, 6], "t_b_ms": 2, "t_w_ms": 1, "m_b_bytes": 200, "m_w_bytes": 100}
    problem = Problem.parse(
        {
            "profile": {
                **{"stages": 1, "t_f_ms": 1, "t_b_ms": 1, "t_w_ms": 1, "m_b_bytes": 1, "m_w_bytes": 1},
                **{"t_comm_ms": 0.5, "layers": {**layers, "boundary_bytes": [1, 2, 3, 4, 5, 0]}},
            },
            "devices": 2,
            "microbatches": 4,
            "placement": "auto",
        }
    )
    starts, placement = [0, 1, 3, 5], [[0, 3], [1, 2]]
    cut = problem.cut(starts, placement)
    return plan_of(cut, random_orders(cut.instance(), 3)).answering(problem, starts)
