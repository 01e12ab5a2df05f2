"""Graph: the events of a plan and what waits for what, to explain why it takes as long as it does.

Plans are judged and measured elsewhere (``validate``, ``simulate``), on arrays; the graph is for people. Everything
here expects a legal plan.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from itertools import pairwise
from typing import Literal

import networkx as nx

from zbplan.instance import KINDS, Instance, op_name
from zbplan.plan import Plan
from zbplan.simulate import inputs

Reason = Literal["start", "input", "busy", "put_off", "gap"]


@dataclass(frozen=True)
class Op:
    """One op of a plan, and where and when it runs."""

    kind: str
    stage: int
    microbatch: int
    device: int
    start_ms: float
    end_ms: float

    def __str__(self) -> str:
        return op_name(self.kind, self.stage, self.microbatch)


@dataclass(frozen=True)
class Wait:
    """Why an op started when it did, and not before.

    Attributes
    ----------
    op
        The op that waited.
    reason
        ``start``: it runs from the start of what is explained. ``busy``: its device ran ``cause`` until then.
        ``input``: what ``cause`` gives arrived then. ``put_off``: the first op of a device, later than it could be,
        which costs nothing where a device's time counts from there (``post_validated``). ``gap``: all that it needed
        was there before, ``cause`` last, so that it could have started earlier.
    cause
        The op that it waited for; None for ``start`` and ``put_off``.
    transfer_ms
        T_comm between the end of ``cause`` and the arrival of what it gives.
    gap_ms
        How much earlier it could have started, for ``put_off`` and ``gap``.
    """

    op: Op
    reason: Reason
    cause: Op | None = None
    transfer_ms: float = 0.0
    gap_ms: float = 0.0

    def __str__(self) -> str:
        if self.reason == "start":
            return "started at once"
        if self.reason == "busy":
            return f"device was busy with {self.cause}"
        if self.reason == "put_off":
            return f"first on its device, put off by {self.gap_ms:g} ms"
        transfer = f" + transfer {self.transfer_ms:g} ms" if self.transfer_ms else ""
        if self.reason == "input" and self.cause is not None:
            return f"input from {self.cause} on device {self.cause.device}{transfer}"
        return f"waited {self.gap_ms:g} ms for nothing after {self.cause}{transfer}"


def event_graph(plan: Plan) -> nx.DiGraph:
    """Return the event graph of a plan.

    Nodes are op integers (``Instance.code``) with an ``op`` and its ``start`` and ``end`` in ticks. An edge leads from
    an op to one that may not start earlier than ``lag`` ticks after its end; its ``reason`` is ``dependency`` (on one
    device), ``transfer`` (between devices), or ``order`` (next on the device). Where an op gives its successor on the
    device an input too, the edge is the dependency.
    """
    instance = plan.instance()
    graph = nx.DiGraph()
    for codes, ops in _per_device(plan, instance):
        graph.add_nodes_from(zip(codes, ops, strict=True))
        graph.add_edges_from(pairwise(codes), lag=0, reason="order")
    for consumer in list(graph):
        for producers, lag in inputs(instance, consumer):
            producer = next(op for op in producers if op in graph)
            same = graph.nodes[producer]["op"].device == graph.nodes[consumer]["op"].device
            graph.add_edge(producer, consumer, lag=lag, reason="dependency" if same else "transfer")
    return graph


def _per_device(plan: Plan, instance: Instance) -> Iterator[tuple[list[int], list[dict[str, object]]]]:
    """Yield each device's op integers in order, and the attributes of their nodes."""
    orders = plan.orders()
    for device, columns in enumerate(plan.devices):
        rows = zip(columns.kind, columns.stage, columns.microbatch, columns.start_ms, columns.end_ms, strict=True)
        ops = [Op(kind, stage, microbatch, device, start, end) for kind, stage, microbatch, start, end in rows]
        starts, ends = instance.clock.many(columns.start_ms).tolist(), instance.clock.many(columns.end_ms).tolist()
        attributes = zip(ops, starts, ends, strict=True)
        yield orders.on(device).tolist(), [{"op": op, "start": start, "end": end} for op, start, end in attributes]


def critical_path(plan: Plan) -> list[Wait]:
    """Return, first to last, the chain of ops that makes the plan take as long as it does, each with why it waited.

    The chain ends with the last op of the objective: the last of all for ``synchronous`` (makespan), the last of the
    device with the longest span for ``post_validated`` (Appendix G, eq. 3). It begins where what is measured begins:
    with the first of all starts, with the op that runs when that device starts, or with an op that was put off. Where
    several waits end at the same tick, one for the device itself is named.
    """
    explanation = _Explanation(plan)
    origin, op = explanation.measured()
    chain = []
    while True:
        wait = explanation.wait(op, origin)
        chain.append(wait)
        if wait.cause is None:
            return chain[::-1]
        op = explanation.code(wait.cause)


def avoidable_gaps(plan: Plan) -> list[Wait]:
    """Return every op that could have started earlier with nothing else changed, by start time and device."""
    explanation = _Explanation(plan)
    origin = min(explanation.start(op) for op in explanation.graph)
    waits = (explanation.wait(op, origin) for op in explanation.graph)
    return sorted((wait for wait in waits if wait.reason == "gap"), key=lambda wait: (wait.op.start_ms, wait.op.device))


class _Explanation:
    """The event graph of a plan, asked for reasons."""

    def __init__(self, plan: Plan) -> None:
        self.graph = event_graph(plan)
        self._instance = plan.instance()
        self._orders = plan.orders()

    def code(self, op: Op) -> int:
        return self._instance.code(KINDS.index(op.kind), op.stage, op.microbatch)

    def start(self, op: int) -> int:
        return int(self.graph.nodes[op]["start"])

    def end(self, op: int) -> int:
        return int(self.graph.nodes[op]["end"])

    def measured(self) -> tuple[int, int]:
        """Return the tick at which what the objective measures starts, and the op with which it ends."""
        spans = [
            (self.start(ops[0]), self.end(ops[-1]), int(ops[-1]))
            for ops in (self._orders.on(device) for device in range(self._instance.devices))
        ]
        if self._instance.post_validated:
            first, _, last = max(spans, key=lambda span: span[1] - span[0])
            return first, last
        return min(first for first, _, _ in spans), max(spans, key=lambda span: span[1])[2]

    def wait(self, op: int, origin: int) -> Wait:
        """Return why an op started when it did; ``origin`` is where what is explained starts, in ticks."""
        waiting, clock = self.graph.nodes[op]["op"], self._instance.clock
        if self.start(op) <= origin:
            return Wait(waiting, "start")
        # An op that needs nothing is the first F of stage 0, and nothing can start before that.
        arrivals = [self._arrival(cause, op) for cause in self.graph.predecessors(op)]
        tick, own, _, cause = max(arrivals)
        gap = self.start(op) - tick
        gap_ms = clock.value(gap)
        if gap and self._instance.post_validated and op == self._orders.on(waiting.device)[0]:
            return Wait(waiting, "put_off", gap_ms=gap_ms)
        transfer_ms = clock.value(self.graph.edges[cause, op]["lag"])
        reason: Reason = "gap" if gap else "busy" if own else "input"
        return Wait(waiting, reason, self.graph.nodes[cause]["op"], transfer_ms, gap_ms)

    def _arrival(self, cause: int, op: int) -> tuple[int, bool, int, int]:
        """Return when an op is free to start as far as one predecessor goes, and what decides between equals."""
        edge = self.graph.edges[cause, op]
        own = self.graph.nodes[cause]["op"].device == self.graph.nodes[op]["op"].device
        return self.end(cause) + edge["lag"], own, -cause, cause
