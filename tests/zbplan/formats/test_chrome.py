from __future__ import annotations

import json
from collections import defaultdict
from collections.abc import Iterable
from itertools import pairwise
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from tests.runtime_client.plans import plan_of, random_plan
from tests.strategies import problems, random_orders
from tests.zbplan.traces import as_planned
from zbplan.formats.chrome import COMPUTE, TRANSFERS, of_plan, of_trace
from zbplan.instance import KINDS
from zbplan.placement import linear, v_shape
from zbplan.plan import Plan
from zbplan.problem import Problem
from zbplan.trace import Trace

PHASES = {"X": {"dur"}, "M": {"args"}, "b": {"id"}, "e": {"id"}, "s": {"id"}, "f": {"id", "bp"}}
"""What the Trace Event Format asks of each kind of event, beside name, ph, pid, tid and (but for M) ts and cat."""

PLANS = {"linear": random_plan(linear(3), 4, seed=1), "v": random_plan(v_shape(2), 3, seed=2)}

Events = list[dict[str, Any]]


def events_of(text: str) -> Events:
    """Return the events of a document that keeps to the format."""
    document = json.loads(text)
    assert document["displayTimeUnit"] in ("ms", "ns")
    for event in document["traceEvents"]:
        needed = {"name", "ph", "pid", "tid"} | PHASES[event["ph"]] | ({"ts", "cat"} if event["ph"] != "M" else set())
        assert needed <= event.keys()
        assert event.get("ts", 0) >= 0
        assert event.get("dur", 0) >= 0
    return document["traceEvents"]


def of_phase(events: Iterable[dict[str, Any]], phase: str) -> Events:
    return [event for event in events if event["ph"] == phase]


def rows(events: Events, device: int, thread: int) -> list[tuple[Any, ...]]:
    """Return the slices of a track: kind, stage, microbatch, start and end in milliseconds."""
    found = [event for event in of_phase(events, "X") if (event["pid"], event["tid"]) == (device, thread)]
    return [(*event["args"].values(), event["ts"] / 1e3, (event["ts"] + event["dur"]) / 1e3) for event in found]


def columns_of(plan: Plan, device: int) -> list[tuple[Any, ...]]:
    return list(zip(*plan.devices[device].model_dump().values(), strict=True))


def assert_tracks(events: Events, devices: int) -> None:
    names = {
        (event["name"], event["pid"], event["tid"]): event["args"]
        for event in of_phase(events, "M")
        if event["name"].endswith("name")
    }
    for device in range(devices):
        assert names["process_name", device, COMPUTE] == {"name": f"device {device}"}
        assert names["thread_name", device, COMPUTE] == {"name": "compute"}
        assert names["thread_name", device, TRANSFERS] == {"name": "transfers"}


def assert_no_slices_overlap(events: Events) -> None:
    tracks = defaultdict(list)
    for event in of_phase(events, "X"):
        tracks[event["pid"], event["tid"]].append((event["ts"], event["ts"] + event["dur"]))
    for track in tracks.values():
        assert all(before[1] <= after[0] + 1e-6 for before, after in pairwise(sorted(track)))


def transfers(plan: Plan) -> int:
    device_of = {stage: device for device, held in enumerate(plan.placement) for stage in held}
    boundaries = sum(device_of[stage] != device_of[stage + 1] for stage in range(plan.requires.stages - 1))
    return 2 * boundaries * plan.requires.microbatches


def assert_arrows(events: Events, count: int) -> None:
    """Each begins inside a slice and ends at the start of one on another device."""
    leaving, arriving = ({event["id"]: event for event in of_phase(events, phase)} for phase in ("s", "f"))
    assert len(leaving) == count
    assert leaving.keys() == arriving.keys()
    slices = [event for event in of_phase(events, "X") if event["tid"] == COMPUTE]
    for arrow, end in ((leaving[name], arriving[name]) for name in leaving):
        assert arrow["pid"] != end["pid"]
        assert any(s["pid"] == arrow["pid"] and s["ts"] < arrow["ts"] < s["ts"] + s["dur"] for s in slices)
        assert any(s["pid"] == end["pid"] and s["ts"] == end["ts"] for s in slices)


@pytest.mark.parametrize("name", PLANS)
def test_a_plan_has_every_op_on_its_device(name: str) -> None:
    plan = PLANS[name]
    events = events_of(of_plan(plan))
    assert_tracks(events, len(plan.devices))
    for device in range(len(plan.devices)):
        found = rows(events, device, COMPUTE)
        assert [row[:3] for row in found] == [row[:3] for row in columns_of(plan, device)]
        assert [time for row in found for time in row[3:]] == pytest.approx(
            [time for row in columns_of(plan, device) for time in row[3:]]
        )
    assert_arrows(events, transfers(plan))


def test_a_planned_transfer_takes_t_comm_from_the_end_of_its_producer() -> None:
    plan = random_plan(linear(2), 2, seed=0, t_comm_ms={"forward": [2.0], "backward": [3.0]})
    events = events_of(of_plan(plan))
    begins, ends = ({event["id"]: event for event in of_phase(events, phase)} for phase in "be")
    assert len(begins) == transfers(plan)
    end_of = {row[:3]: row[4] for device in range(2) for row in columns_of(plan, device)}
    for name, begin in begins.items():
        microbatch, forward = begin["args"]["microbatch"], begin["name"] == "activation"
        producers = [("F", 0, microbatch)] if forward else [("B", 1, microbatch), ("BW", 1, microbatch)]
        assert begin["ts"] / 1e3 == pytest.approx(next(end_of[op] for op in producers if op in end_of))
        assert (ends[name]["ts"] - begin["ts"]) / 1e3 == pytest.approx(2 if forward else 3)
        assert (begin["pid"], begin["args"]["to_device"]) == ((0, 1) if forward else (1, 0))


@settings(deadline=None, max_examples=20)
@given(problems(placements=("linear", "v", "interleaved"), limited=False), st.integers(0, 2**32))
def test_every_plan_keeps_to_the_format(problem: Problem, seed: int) -> None:
    plan = plan_of(problem, random_orders(problem.instance(), seed))
    events = events_of(of_plan(plan))
    assert_no_slices_overlap(events)
    assert len(of_phase(events, "b")) == len(of_phase(events, "e")) == transfers(plan)


@pytest.mark.parametrize("name", PLANS)
def test_a_trace_has_ops_and_transfers_of_every_step_on_tracks_of_their_own(name: str) -> None:
    plan = PLANS[name]
    trace = as_planned(plan, steps=3)
    events = events_of(of_trace(plan, trace))
    assert_tracks(events, len(plan.devices))
    assert_no_slices_overlap(events)
    for device in range(len(plan.devices)):
        spans = [
            (*span[:3], step.at_ms + span.start_ms, step.at_ms + span.end_ms)
            for step in trace.steps
            for span in step.devices[device].spans()
        ]
        for thread in (COMPUTE, TRANSFERS):
            needed = [span for span in spans if (span[0] in KINDS) == (thread == COMPUTE)]
            found = rows(events, device, thread)
            assert [row[:3] for row in found] == [span[:3] for span in needed]
            assert [time for row in found for time in row[3:]] == pytest.approx(
                [time for span in needed for time in span[3:]]
            )
    assert_arrows(events, 3 * transfers(plan))


def test_a_trace_says_what_it_was_measured_on() -> None:
    plan = PLANS["linear"]
    trace = Trace.parse(as_planned(plan).model_dump() | {"environment": {"device": "cpu", "plan_id": "other"}})
    assert json.loads(of_trace(plan, trace))["otherData"] == {"plan_id": plan.plan_id, "device": "cpu"}
