"""Traces as a job would note them, made from plans."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any

from zbplan.instance import KINDS
from zbplan.plan import Plan
from zbplan.simulate import inputs
from zbplan.trace import Trace

Stretch = Callable[[str, int, int, int], float]
"""Given kind, stage, microbatch and step: by what an op takes longer than planned."""


def as_planned(plan: Plan, *, steps: int = 1, gap_ms: float = 1.0, **fields: Any) -> Trace:
    """Return the trace of a job that runs exactly as planned, with ``gap_ms`` between two steps."""
    return stretched(plan, lambda *_: 1.0, steps=steps, gap_ms=gap_ms, **fields)


def stretched(
    plan: Plan,
    stretch: Stretch,
    *,
    steps: int = 1,
    first_step: int = 0,
    gap_ms: float = 1.0,
    lag_factor: float = 1.0,
    overhead_ms: float = 0.0,
    peak_bytes: float | None = None,
    tokens: int | None = None,
) -> Trace:
    """Return the trace of a job whose ops take ``stretch`` times as long as planned, in the plan's orders.

    Parameters
    ----------
    gap_ms
        What passes between the end of a step and the begin of the next.
    lag_factor
        By what transfers take longer than planned.
    overhead_ms
        What passes on a device before each op, for nothing.
    """
    found, at_ms = [], 0.0
    for step in range(first_step, first_step + steps):
        devices = _step(plan, lambda *op, step=step: stretch(*op, step), lag_factor, overhead_ms, peak_bytes)
        found.append({"step": step, "at_ms": at_ms, "tokens": tokens, "devices": devices})
        at_ms += max(device["finish_ms"] for device in devices) + gap_ms
    clocks = [0.0] * len(plan.devices)
    return Trace.parse({"plan_id": plan.plan_id, "clock_error_ms": clocks, "steps": found})


def _step(
    plan: Plan,
    stretch: Callable[[str, int, int], float],
    lag_factor: float,
    overhead_ms: float,
    peak_bytes: float | None,
) -> list[dict[str, Any]]:
    instance, orders = plan.instance(), plan.orders()
    ends: dict[int, float] = {}
    free = [0.0] * instance.devices
    rows: list[list[tuple[str, int, int, float, float]]] = [[] for _ in range(instance.devices)]
    left = [orders.on(device).tolist() for device in range(instance.devices)]
    device_of = instance.device_of.tolist()
    while any(left):
        for device, ops in enumerate(left):
            while ops and (arrivals := _arrivals(inputs(instance, ops[0]), ends)) is not None:
                code = ops.pop(0)
                kind, stage, microbatch = instance.split(code)
                name = KINDS[kind]
                for producer, lag in arrivals:
                    if device_of[instance.split(producer)[1]] != device:
                        arrival = ends[producer] + lag_factor * instance.clock.value(lag)
                        wait = f"RECV_{'F' if name == 'F' else 'B'}"
                        until = max(free[device], arrival)
                        rows[device].append((wait, stage, microbatch, free[device], until))
                        free[device] = until
                start = free[device] + overhead_ms
                took = stretch(name, stage, microbatch) * instance.clock.value(int(instance.duration.ravel()[code]))
                rows[device].append((name, stage, microbatch, start, start + took))
                free[device] = ends[code] = start + took
                target = {"F": stage + 1, "B": stage - 1, "BW": stage - 1}.get(name, -1)
                if 0 <= target < instance.stages and device_of[target] != device:
                    sent = f"SEND_{'F' if name == 'F' else 'B'}"
                    rows[device].append((sent, stage, microbatch, free[device], free[device]))
    return [_columns(own, peak_bytes) for own in rows]


def _arrivals(needed: Any, ends: Mapping[int, float]) -> list[tuple[int, int]] | None:
    found = []
    for producers, lag in needed:
        producer = next((producer for producer in producers if producer in ends), None)
        if producer is None:
            return None
        found.append((producer, lag))
    return found


def _columns(rows: list[tuple[str, int, int, float, float]], peak_bytes: float | None) -> dict[str, Any]:
    names = ("kind", "stage", "microbatch", "start_ms", "end_ms")
    columns = {name: [row[at] for row in rows] for at, name in enumerate(names)}
    return columns | {"begin_ms": 0.0, "finish_ms": rows[-1][4], "peak_bytes": peak_bytes}
