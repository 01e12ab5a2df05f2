"""Trace report: a plan against a trace of it: what took longer, what waited for what, and where the time went."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import asdict, dataclass
from typing import Any

import numpy as np

from zbplan.duration import NEVER, Duration
from zbplan.instance import BW, KINDS, B, F
from zbplan.joined import NOTHING, FloatArray, Joined
from zbplan.plan import Plan
from zbplan.trace import Trace

Times = tuple[FloatArray, FloatArray]
"""Planned and measured, of each op."""

DIVERGED = 0.01
"""An op that ends later or earlier than planned by this part of the planned iteration has left the plan."""


@dataclass(frozen=True)
class Compared:
    """A figure of the plan, and the median of the same over steps; None where there is none."""

    planned: float | None
    measured: float | None

    @property
    def ratio(self) -> float | None:
        """Measured by planned."""
        return self.measured / self.planned if self.measured is not None and self.planned else None


@dataclass(frozen=True)
class OpReport:
    """One op; times are medians over steps, counted from the first start of all ops.

    Attributes
    ----------
    dependency_wait_ms
        How long its device stood still for what it receives.
    resource_wait_ms
        How long it was ready while its device ran other ops.
    """

    op: str
    device: int
    start_ms: Compared
    took_ms: Compared
    dependency_wait_ms: Compared
    resource_wait_ms: Compared


@dataclass(frozen=True)
class KindReport:
    """All ops of a kind on a stage.

    Attributes
    ----------
    took_ms
        Medians over microbatches and steps.
    start_error_ms
        How much later than planned they started, on average over microbatches.
    dependency_wait_ms, resource_wait_ms
        As of each op, on average over microbatches.
    spread_ms, samples
        Median absolute deviation of the durations measured, and their number.
    """

    kind: str
    stage: int
    device: int
    took_ms: Compared
    start_error_ms: float
    dependency_wait_ms: Compared
    resource_wait_ms: Compared
    spread_ms: float
    samples: int


@dataclass(frozen=True)
class TransferReport:
    """Transfers from a stage to a neighbour, as far as the receiver stood waiting and thus saw how long they take."""

    from_stage: int
    to_stage: int
    took_ms: Compared
    spread_ms: float
    samples: int


@dataclass(frozen=True)
class DeviceReport:
    """Where the time of a device's step goes, in medians over steps; the parts add up to it but for the medians.

    Attributes
    ----------
    step_ms
        From the begin to the end of its step.
    ops_ms, waiting_ms, sending_ms, host_ms
        F, B, W and BW; waits for what is received; posting of what is sent; all else inside the step.
    """

    device: int
    step_ms: float
    ops_ms: Compared
    waiting_ms: Compared
    sending_ms: float
    host_ms: float
    peak_bytes: Compared


@dataclass(frozen=True)
class Divergence:
    """The first op, in the plan's time, that ended at another time than planned."""

    op: str
    device: int
    end_ms: Compared
    why: str


@dataclass(frozen=True)
class Report:
    """A plan against a trace of it.

    Attributes
    ----------
    steps
        How many steps count.
    is_warm
        False if they are a job's first, which take longer.
    iteration_ms
        What the plan's objective minimises, from first to last op.
    bubble_rate, steady_bubble_rate
        1 − the busiest device's work / time: of the iteration, and of its steady state, in which every device has
        begun its backward ops and none is through with its F (None if there is no such time).
    period_ms
        From the begin of a step to that of the next, with what runs between steps; None if no two follow each other.
    outside_ops
        Part of the period, or of the step, that no device spends in F, B, W or a transfer: of the busiest device.
    outside_step
        Part of the period that passes between steps (data, optimizer).
    clock_error_ms
        How far times of different devices may be off against each other.
    """

    plan_id: str
    steps: int
    is_warm: bool
    iteration_ms: Compared
    bubble_rate: Compared
    steady_bubble_rate: Compared
    period_ms: float | None
    tokens_per_s: float | None
    outside_ops: float
    outside_step: float | None
    clock_error_ms: float
    first_divergence: Divergence | None
    kinds: list[KindReport]
    transfers: list[TransferReport]
    devices: list[DeviceReport]
    ops: list[OpReport]

    def as_json(self) -> dict[str, Any]:
        """Return one JSON value."""
        return asdict(self)


def report(plan: Plan, trace: Trace) -> Report:
    """Hold a trace against the legal plan that ran.

    Raises
    ------
    InvalidInputError
        If the trace is of another plan, or a device did not run its ops in the plan's order.
    """
    joined = Joined.of(plan, trace)
    devices = list(_devices(joined))
    period_ms = _period_ms(joined)
    whole_ms = period_ms or max(device.step_ms for device in devices)
    actions_ms = max(_measured(each.ops_ms) + _measured(each.waiting_ms) + each.sending_ms for each in devices)
    tokens = next((step.tokens for step in joined.steps if step.tokens is not None), None)
    return Report(
        plan_id=plan.plan_id,
        steps=len(joined.steps),
        is_warm=joined.is_warm,
        iteration_ms=_iteration_ms(joined),
        bubble_rate=_bubble_rate(joined),
        steady_bubble_rate=_steady_bubble_rate(joined),
        period_ms=period_ms,
        tokens_per_s=1e3 * tokens / whole_ms if tokens and whole_ms else None,
        outside_ops=max(0.0, 1 - actions_ms / whole_ms) if whole_ms else 0.0,
        outside_step=_outside_step(devices, period_ms),
        clock_error_ms=2 * max(trace.clock_error_ms),
        first_divergence=_first_divergence(joined),
        kinds=list(_kinds(joined)),
        transfers=list(_transfers(joined)),
        devices=devices,
        ops=list(_ops(joined)),
    )


def _measured(figure: Compared) -> float:
    return figure.measured or 0.0


def _median(samples: FloatArray) -> float:
    return float(np.median(samples))


def _spans(joined: Joined, start: FloatArray, end: FloatArray) -> FloatArray:
    """Return what the objective minimises: float64[…]."""
    if not joined.instance.post_validated:
        return np.asarray(end.max(axis=-1) - start.min(axis=-1))
    own = [joined.device == device for device in range(joined.instance.devices)]
    return np.asarray(np.max([end[..., ops].max(axis=-1) - start[..., ops].min(axis=-1) for ops in own], axis=0))


def _iteration_ms(joined: Joined) -> Compared:
    measured = _spans(joined, joined.start, joined.end)
    return Compared(joined.plan.metrics.iteration_ms, _median(measured))


def _busiest_ms(joined: Joined, took: FloatArray) -> FloatArray:
    own = [joined.device == device for device in range(joined.instance.devices)]
    return np.asarray(np.max([took[..., ops].sum(axis=-1) for ops in own], axis=0))


def _bubble_rate(joined: Joined) -> Compared:
    spans = _spans(joined, joined.start, joined.end)
    busy = _busiest_ms(joined, joined.took_ms)
    rates = np.divide(spans - busy, spans, out=np.zeros_like(spans), where=spans > 0)
    return Compared(joined.plan.metrics.bubble_rate, _median(rates))


def _steady_bubble_rate(joined: Joined) -> Compared:
    rates = [_steady_rate(joined, *times) for times in zip(joined.start, joined.end, strict=True)]
    found = [rate for rate in rates if rate is not None]
    planned = _steady_rate(joined, joined.planned_start, joined.planned_end)
    return Compared(planned, _median(np.array(found)) if found else None)


def _steady_rate(joined: Joined, start: FloatArray, end: FloatArray) -> float | None:
    own = [joined.device == device for device in range(joined.instance.devices)]
    backward = (joined.kind == B) | (joined.kind == BW)
    begin_ms = max(start[ops & backward].min() for ops in own)
    until_ms = min(end[ops & (joined.kind == F)].max() for ops in own)
    if until_ms <= begin_ms:
        return None
    inside = np.clip(end, begin_ms, until_ms) - np.clip(start, begin_ms, until_ms)
    return float(1 - _busiest_ms(joined, inside) / (until_ms - begin_ms))


def _period_ms(joined: Joined) -> float | None:
    pairs = zip(joined.steps, joined.steps[1:], strict=False)
    found = [after.at_ms - before.at_ms for before, after in pairs if after.step == before.step + 1]
    return _median(np.array(found)) if found else None


def _outside_step(devices: list[DeviceReport], period_ms: float | None) -> float | None:
    if not period_ms:
        return None
    return max(0.0, 1 - max(device.step_ms for device in devices) / period_ms)


def _kinds(joined: Joined) -> Iterator[KindReport]:
    later_ms = np.median(joined.start, axis=0) - joined.planned_start
    waited, queued = _waits(joined)
    for stage, device in enumerate(joined.instance.device_of.tolist()):
        for kind, name in enumerate(KINDS):
            ops = (joined.stage == stage) & (joined.kind == kind)
            if ops.any():
                found = Duration.of(joined.took_ms[:, ops].ravel().tolist())
                yield KindReport(
                    name,
                    stage,
                    device,
                    took_ms=Compared(_median(joined.planned_ms[ops]), found.median_ms),
                    start_error_ms=float(later_ms[ops].mean()),
                    dependency_wait_ms=_compared(*(times[ops].mean() for times in waited)),
                    resource_wait_ms=_compared(*(times[ops].mean() for times in queued)),
                    spread_ms=found.spread_ms,
                    samples=found.samples,
                )


def _transfers(joined: Joined) -> Iterator[TransferReport]:
    lags = {1: joined.instance.forward_lag, -1: joined.instance.backward_lag}
    for (stage, step), found in transfer_durations(joined).items():
        planned_ms = joined.instance.clock.value(int(lags[step][min(stage, stage + step)]))
        took = Compared(planned_ms, found.median_ms if found.samples else None)
        yield TransferReport(stage, stage + step, took, found.spread_ms, found.samples)


def transfer_durations(joined: Joined) -> dict[tuple[int, int], Duration]:
    """Return T_comm from each stage to the next (1) or the one before (-1) on another device, where it can be told.

    It takes a receiver that stood waiting before the producer was done; ``NEVER`` where none did.
    """
    received = np.flatnonzero(joined.received_from != NOTHING)
    producer = joined.received_from[received]
    sent, waited, arrived = joined.end[:, producer], joined.wait_start[:, received], joined.wait_end[:, received]
    step = joined.stage[received] - joined.stage[producer]
    found = {}
    for stage, way in sorted({*zip(joined.stage[producer].tolist(), step.tolist(), strict=True)}, key=_along):
        ops = (joined.stage[producer] == stage) & (step == way)
        stood = waited[:, ops] <= sent[:, ops]
        samples = np.maximum(0.0, (arrived - sent)[:, ops][stood]).tolist()
        found[stage, way] = Duration.of(samples) if samples else NEVER
    return found


def _along(boundary: tuple[int, int]) -> tuple[int, int]:
    stage, way = boundary
    return min(stage, stage + way), -way


def _devices(joined: Joined) -> Iterator[DeviceReport]:
    metrics = joined.plan.metrics
    planned_wait = _planned_wait(joined)
    for device in range(joined.instance.devices):
        own = joined.device == device
        traces = [step.devices[device] for step in joined.steps]
        step_ms = np.array([trace.finish_ms - trace.begin_ms for trace in traces])
        ops_ms, waiting_ms = joined.took_ms[:, own].sum(axis=1), joined.waited_ms[:, own].sum(axis=1)
        sending_ms = joined.sending[:, own].sum(axis=1)
        peaks = [trace.peak_bytes for trace in traces if trace.peak_bytes is not None]
        yield DeviceReport(
            device,
            _median(step_ms),
            Compared(metrics.busy_ms[device], _median(ops_ms)),
            Compared(float(planned_wait[own].sum()), _median(waiting_ms)),
            _median(sending_ms),
            _median(np.maximum(0.0, step_ms - ops_ms - waiting_ms - sending_ms)),
            Compared(metrics.peak_bytes[device], max(peaks) if peaks else None),
        )


def _planned_wait(joined: Joined) -> FloatArray:
    end = joined.planned_end
    return np.maximum(0.0, joined.ready(end) - joined.free(end))


def _ops(joined: Joined) -> Iterator[OpReport]:
    start, took = (np.median(times, axis=0) for times in (joined.start, joined.took_ms))
    waited, queued = _waits(joined)
    for at in range(len(joined.ops)):
        yield OpReport(
            joined.name(at),
            int(joined.device[at]),
            _compared(joined.planned_start[at], start[at]),
            _compared(joined.planned_ms[at], took[at]),
            _compared(*(times[at] for times in waited)),
            _compared(*(times[at] for times in queued)),
        )


def _waits(joined: Joined) -> tuple[Times, Times]:
    """Return the wait of each op for what it needs, and that for its device, planned and measured."""
    planned, end = joined.planned_end, joined.end
    waited = np.median(joined.dependency_wait_ms, axis=0)
    queued = np.median(np.maximum(0.0, joined.free(end) - joined.ready(end)), axis=0)
    planned_queue = np.maximum(0.0, joined.free(planned) - joined.ready(planned))
    return (_planned_wait(joined), waited), (planned_queue, queued)


def _compared(planned: float, measured: float) -> Compared:
    return Compared(float(planned), float(measured))


def _first_divergence(joined: Joined) -> Divergence | None:
    start, end = np.median(joined.start, axis=0), np.median(joined.end, axis=0)
    error = end - joined.planned_end
    left = np.flatnonzero(np.abs(error) > DIVERGED * joined.plan.metrics.iteration_ms)
    if not len(left):
        return None
    at = min(left.tolist(), key=lambda op: (joined.planned_end[op], joined.device[op]))
    longer = float(np.median(joined.took_ms, axis=0)[at] - joined.planned_ms[at])
    later = float(start[at] - joined.planned_start[at])
    waited = float(np.median(joined.dependency_wait_ms, axis=0)[at] - _planned_wait(joined)[at])
    return Divergence(
        joined.name(at), int(joined.device[at]), _compared(joined.planned_end[at], end[at]), _why(longer, later, waited)
    )


def _why(longer_ms: float, later_ms: float, waited_ms: float) -> str:
    if abs(longer_ms) >= abs(later_ms):
        return f"it ran {abs(longer_ms):.3g} ms {'longer' if longer_ms > 0 else 'shorter'}"
    start = f"it started {abs(later_ms):.3g} ms {'later' if later_ms > 0 else 'earlier'}"
    if waited_ms > abs(later_ms) / 2:
        return f"{start}, {waited_ms:.3g} ms of which it waited longer for what it receives"
    return f"{start}, its device was not free or the host was late"
