"""Does what the runtime says of itself hold? The cost of a trace, and peak memory against the accounting.

``python -m benchmarks.runtime_trace`` prints a row per claim and fails if one does not hold. The cost of a trace is
that of noting an action, times the actions of a step, in parts of the step: what tracing adds to a step drowns in what
else the machine does.
"""

from __future__ import annotations

import json
import sys
import tempfile
from collections.abc import Iterator
from itertools import chain
from pathlib import Path
from statistics import median
from time import perf_counter_ns

import torch
from torch.distributed.pipelining import PipelineStage

from benchmarks.claim import Claim, exit_status
from benchmarks.profiling_worker import BENCHMARK_GPT, alone_on_a_core
from benchmarks.ranks import run_ranks
from benchmarks.runtime_trace_worker import METHODS, plan_of
from profiler import gpt
from profiler.ranks import all_ranks
from runtime_client import PlanSchedule
from runtime_client.lowering import Action
from runtime_client.tracing import Tracer
from zbplan.profile import Profile

RANKS = 2
STEPS, CALLS = 12, 20_000


def cost() -> Iterator[Claim]:
    """Hold what noting an action costs against a step; print traced and bare steps side by side."""
    alone_on_a_core(0)
    with all_ranks():
        profile = {"stages": 1, "t_f_ms": 1, "t_b_ms": 1, "t_w_ms": 1, "t_comm_ms": 0, "m_b_bytes": 1, "m_w_bytes": 1}
        plan = plan_of(Profile.parse(profile), "zb_h1")
        bare, traced = (_schedule(plan, trace=trace) for trace in (False, True))
        tokens = gpt.layered_model(BENCHMARK_GPT).microbatch[0].repeat(plan.requires.microbatches, 1)

        def step_ms(schedule: PlanSchedule) -> float:
            start = perf_counter_ns()
            schedule.step(tokens, target=tokens)
            return (perf_counter_ns() - start) / 1e6

        both = [(step_ms(bare), step_ms(traced)) for _ in range(STEPS)][2:]
        actions = len(plan.devices[0].kind) + plan.requires.microbatches  # each loss is noted too
    bare_ms, traced_ms = (median(column) for column in zip(*both, strict=True))
    print(f"     trace: step {bare_ms:.2f} ms bare, {traced_ms:.2f} ms traced ({traced_ms / bare_ms - 1:+.2%})")
    each_ms = _action_ms()
    yield Claim(f"trace, {each_ms * 1e3:.2f} µs an action, part of a step", actions * each_ms / bare_ms, 0.01)


def _schedule(plan: object, *, trace: bool) -> PlanSchedule:
    stage = PipelineStage(gpt.staged_model(BENCHMARK_GPT, 1).build(0), 0, 1, torch.device("cpu"))
    return PlanSchedule(stage, plan, gpt.loss, trace=trace)


def _action_ms() -> float:
    """Return what noting an action adds, with its share of what a step adds at its end."""
    tracer, action = Tracer(torch.device("cpu")), Action("F", 0, 0)
    start = perf_counter_ns()
    with tracer.step(None, counts=lambda: True):
        for _ in range(CALLS):
            with tracer.during(action):
                pass
    return (perf_counter_ns() - start) / 1e6 / CALLS


def memory() -> Iterator[Claim]:
    """Hold the most memory of a step, less weights, gradients and optimizer state, against the plan's."""
    with tempfile.TemporaryDirectory() as folder:
        run_ranks(RANKS, "benchmarks.runtime_trace_worker", folder)
        found = [json.loads(path.read_text()) for path in sorted(Path(folder).glob("*.json"))]
    for method in METHODS:
        for rank, peaks in enumerate(each[method] for each in found):
            measured, planned = peaks["measured"], peaks["planned"]
            print(f"     {method} on rank {rank}: {measured / 1e6:.2f} MB, {measured / planned:.4f} of the plan's own")
            text = f"peak memory of {method} on rank {rank}, measured / plan with transfers"
            yield Claim(text, measured / peaks["with_transfers"], 1.02)


def main() -> int:
    """Print all claims; return 1 if one does not hold."""
    return exit_status(chain(memory(), cost()))


if __name__ == "__main__":
    sys.exit(main())
