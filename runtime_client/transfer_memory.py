"""Transfer memory: what receives and sends hold beside what a plan counts, and the peak with it.

A plan counts a microbatch from the start of its F. Its receive is posted earlier, so that the transfer can pass while
the device still works on something else, and a gradient that is sent lives until ``Links`` has waited for it.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator, Sequence

from runtime_client.links import UNDER_WAY
from runtime_client.lowering import Action, lower
from zbplan.plan import Plan
from zbplan.simulate import memory_curve

_USED_BY = {"F": "RECV_F", "B": "RECV_B", "BW": "RECV_B"}


def peak_bytes(plan: Plan) -> list[float]:
    """Return, per device, the most memory that a legal plan takes here: its own curve with transfers on top.

    The profile must know ``boundary_bytes``; where it says 0, transfers count for nothing.
    """
    instance, orders = plan.instance(), plan.orders()
    boundary = [float(size) for size in plan.planned.profile.per_stage("boundary_bytes")]
    peaks = []
    for device, actions in enumerate(lower(plan)):
        curve = memory_curve(instance, orders.on(device), device).tolist()
        held = (sum(boundary[edge] for edge in during.elements()) for during in _held(actions))
        peaks.append(max(instance.memory.value(level) + more for level, more in zip(curve, held, strict=True)))
    return peaks


def _held(actions: Sequence[Action]) -> Iterator[Counter[int]]:
    """Yield, for each op of a device, how many tensors of each boundary are posted or under way during it.

    What the op itself uses up or makes is part of the profile's figures for it. Boundary s lies behind stage s.
    """
    posted: Counter[int] = Counter()
    leaving: Counter[int] = Counter()
    for kind, stage, _ in actions:
        if kind == "RECV_F":
            posted[stage - 1] += 1
        elif kind == "RECV_B":
            posted[stage] += 1
        elif kind == "SEND_B":
            leaving[stage - 1] = min(leaving[stage - 1] + 1, UNDER_WAY["SEND_B"])
        elif not kind.startswith("SEND"):
            edge = stage - 1 if kind == "F" else stage
            if kind in _USED_BY and posted[edge]:
                posted[edge] -= 1
            yield posted + leaving
