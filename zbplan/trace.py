"""Trace: when a job really ran each op of a plan, and what passed between its devices."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Annotated, Literal, NamedTuple, Self

from pydantic import Field, model_validator

from zbplan.amount import Amount
from zbplan.errors import Finding
from zbplan.instance import KINDS, op_name
from zbplan.record import Environment, Record, refuse

TRANSFERS = ("SEND_F", "RECV_F", "SEND_B", "RECV_B")
"""Rows of a trace that are no ops: posting a send, and waiting for what was to be received.

The stage of a send is the one whose result leaves, that of a receive the one that needs it.
"""


class Span(NamedTuple):
    """One row of a trace."""

    kind: str
    stage: int
    microbatch: int
    start_ms: float
    end_ms: float

    def __str__(self) -> str:
        return op_name(self.kind, self.stage, self.microbatch)


class DeviceTrace(Record):
    """What one device did in one step, as columns in the order in which it did it.

    Attributes
    ----------
    begin_ms, finish_ms
        When its step began and ended; all times of a step count from the earliest begin of all devices.
    peak_bytes
        The most memory in use at once during the step; null where the device does not count it.
    """

    kind: list[str]
    stage: list[Annotated[int, Field(ge=0)]]
    microbatch: list[Annotated[int, Field(ge=0)]]
    start_ms: list[Amount]
    end_ms: list[Amount]
    begin_ms: Amount
    finish_ms: Amount
    peak_bytes: Amount | None = None

    @model_validator(mode="after")
    def _columns(self) -> Self:
        lengths = {name: len(getattr(self, name)) for name in Span._fields}
        if len(set(lengths.values())) > 1:
            refuse([Finding("", str(lengths), "columns of one length")])
        refuse(self._wrong_rows())
        return self

    def _wrong_rows(self) -> Iterator[Finding]:
        known = (*KINDS, *TRANSFERS)
        for at, (kind, start, end) in enumerate(zip(self.kind, self.start_ms, self.end_ms, strict=True)):
            if kind not in known:
                yield Finding(f".kind[{at}]", repr(kind), f"one of {', '.join(known)}")
            if end < start:
                yield Finding(f".end_ms[{at}]", f"{end:g}", f"{start:g}, its start, or later")

    def spans(self) -> list[Span]:
        """Return the rows."""
        columns = (getattr(self, name) for name in Span._fields)
        return [Span(*row) for row in zip(*columns, strict=True)]

    def ops(self) -> list[Span]:
        """Return the rows that are ops."""
        return [span for span in self.spans() if span.kind in KINDS]


class StepTrace(Record):
    """One step of a job.

    Attributes
    ----------
    step
        Its number since the schedule was built.
    at_ms
        When it began, counted from the first step of the trace.
    tokens
        How many tokens all microbatches of the step have together; null where the job did not say.
    """

    step: Annotated[int, Field(ge=0)]
    at_ms: Amount
    tokens: Annotated[int, Field(ge=1)] | None = None
    devices: Annotated[list[DeviceTrace], Field(min_length=1)]


class Trace(Record):
    """Steps of a job that ran one plan.

    Attributes
    ----------
    plan_id
        The plan that ran.
    clock_error_ms
        Per device, how far its clock may be off against that of device 0.
    environment
        What the job ran on, for people.
    """

    format: Literal["zbplan.trace/1"] = "zbplan.trace/1"
    plan_id: str
    clock_error_ms: list[Amount]
    steps: Annotated[list[StepTrace], Field(min_length=1)]
    environment: Annotated[Environment, Field(default_factory=dict)]

    @model_validator(mode="after")
    def _devices(self) -> Self:
        needed = len(self.clock_error_ms)
        refuse(
            Finding(f".steps[{at}].devices", f"{len(step.devices)} devices", f"{needed}, one per clock")
            for at, step in enumerate(self.steps)
            if len(step.devices) != needed
        )
        return self
