"""Chrome trace: plans and traces as the Trace Event JSON that Perfetto and chrome://tracing open.

Devices are processes; each has a track for ops and one for transfers. Arrows lead from an op to the op on another
device that needs its result. Times are microseconds.
"""

from __future__ import annotations

import json
from collections.abc import Iterable, Iterator, Mapping
from typing import Any, NamedTuple

from zbplan.instance import KINDS, Instance
from zbplan.plan import Plan
from zbplan.simulate import inputs
from zbplan.trace import Span, StepTrace, Trace

Event = dict[str, Any]

COMPUTE, TRANSFERS = range(2)
"""Thread ids: the tracks of a device."""

MS_US = 1e3


class _Op(NamedTuple):
    """An op on the device that runs it."""

    device: int
    span: Span


def of_plan(plan: Plan) -> str:
    """Return a legal plan: its ops, and each transfer from the end of its producer for T_comm."""
    instance = plan.instance()
    rows = [zip(ops.kind, ops.stage, ops.microbatch, ops.start_ms, ops.end_ms, strict=True) for ops in plan.devices]
    ops = [_Op(device, Span(*row)) for device, spans in enumerate(rows) for row in spans]
    by_code = {_code(instance, op.span): op for op in ops}
    events = [
        *_tracks(instance.devices),
        *(_slice(op.span, op.device, COMPUTE) for op in ops),
        *_planned_transfers(instance, by_code),
        *_arrows(instance, by_code, scope="plan"),
    ]
    return _document(events, {"plan_id": plan.plan_id, "iteration_ms": plan.metrics.iteration_ms})


def of_trace(plan: Plan, trace: Trace) -> str:
    """Return a trace of a plan, its steps one after the other as they ran.

    On the track of transfers, SEND is the posting of a send, RECV the wait for what is received.
    """
    instance = plan.instance()
    events = [*_tracks(instance.devices), *(event for step in trace.steps for event in _of_step(instance, step))]
    return _document(events, {**trace.environment, "plan_id": trace.plan_id})


def _of_step(instance: Instance, step: StepTrace) -> Iterator[Event]:
    by_code = {}
    for device, columns in enumerate(step.devices):
        for row in columns.spans():
            span = row._replace(start_ms=step.at_ms + row.start_ms, end_ms=step.at_ms + row.end_ms)
            is_op = span.kind in KINDS
            yield _slice(span, device, COMPUTE if is_op else TRANSFERS) | {"cat": f"step {step.step}"}
            if is_op:
                by_code[_code(instance, span)] = _Op(device, span)
    yield from _arrows(instance, by_code, scope=f"step {step.step}")


def _code(instance: Instance, span: Span) -> int:
    return instance.code(KINDS.index(span.kind), span.stage, span.microbatch)


def _tracks(devices: int) -> Iterator[Event]:
    for device in range(devices):
        yield _metadata("process_name", device, name=f"device {device}")
        yield _metadata("process_sort_index", device, sort_index=device)
        for thread, name in ((COMPUTE, "compute"), (TRANSFERS, "transfers")):
            yield _metadata("thread_name", device, thread, name=name)
            yield _metadata("thread_sort_index", device, thread, sort_index=thread)


def _metadata(about: str, device: int, thread: int = COMPUTE, **args: object) -> Event:
    return {"name": about, "ph": "M", "pid": device, "tid": thread, "args": args}


def _slice(span: Span, device: int, thread: int) -> Event:
    return {
        # Perfetto colours by the name without its digits: a colour per kind.
        "name": f"{span.kind}{span.microbatch} stage {span.stage}",
        "cat": "plan",
        "ph": "X",
        "ts": span.start_ms * MS_US,
        "dur": (span.end_ms - span.start_ms) * MS_US,
        "pid": device,
        "tid": thread,
        "args": {"kind": span.kind, "stage": span.stage, "microbatch": span.microbatch},
    }


def _planned_transfers(instance: Instance, by_code: Mapping[int, _Op]) -> Iterator[Event]:
    """Yield transfers as asynchronous slices, several of which may be under way at once."""
    for number, (producer, consumer, lag_ms) in enumerate(_between_devices(instance, by_code)):
        sent_ms = producer.span.end_ms
        for phase, moment_ms in (("b", sent_ms), ("e", sent_ms + lag_ms)):
            yield {
                "name": "activation" if producer.span.kind == "F" else "gradient",
                "cat": "transfer",
                "ph": phase,
                "id": number,
                "ts": moment_ms * MS_US,
                "pid": producer.device,
                "tid": TRANSFERS,
                "args": {
                    "microbatch": producer.span.microbatch,
                    "from_stage": producer.span.stage,
                    "to_stage": consumer.span.stage,
                    "to_device": consumer.device,
                },
            }


def _arrows(instance: Instance, by_code: Mapping[int, _Op], scope: str) -> Iterator[Event]:
    for number, (producer, consumer, _) in enumerate(_between_devices(instance, by_code)):
        common = {"name": "needs", "cat": "dependency", "id": f"{scope}/{number}", "tid": COMPUTE}
        # An arrow belongs to the slice around its moment, so it must not lie on the edge of the next one.
        leaves_ms = (producer.span.start_ms + producer.span.end_ms) / 2
        yield common | {"ph": "s", "ts": leaves_ms * MS_US, "pid": producer.device}
        yield common | {"ph": "f", "bp": "e", "ts": consumer.span.start_ms * MS_US, "pid": consumer.device}


def _between_devices(instance: Instance, by_code: Mapping[int, _Op]) -> Iterator[tuple[_Op, _Op, float]]:
    """Yield producer, consumer and T_comm in milliseconds for every result that another device needs."""
    for code, consumer in by_code.items():
        for producers, lag in inputs(instance, code):
            producer = next((by_code[producer] for producer in producers if producer in by_code), None)
            if producer is not None and producer.device != consumer.device:
                yield producer, consumer, instance.clock.value(lag)


def _document(events: Iterable[Event], about: Mapping[str, object]) -> str:
    return json.dumps(
        {"traceEvents": list(events), "displayTimeUnit": "ms", "otherData": about}, allow_nan=False, ensure_ascii=False
    )
