"""Is what the profiler says true? Predicted against measured iterations, layers against stages, the recorder's cost.

``python -m benchmarks.profiling [NAME …]`` prints a row per claim and fails if one does not hold. Needs a machine that
does nothing else, with a core per rank. Measured profiles are kept in ``benchmarks/profiles``.
"""

from __future__ import annotations

import argparse
import json
import sys
import tempfile
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path
from statistics import median
from time import perf_counter_ns

import torch
from torch.distributed.pipelining import PipelineStage, ScheduleGPipe

from benchmarks.claim import Claim, exit_status
from benchmarks.profiling_worker import BENCHMARK_GPT, EMULATED_FACTOR, alone_on_a_core
from benchmarks.ranks import run_ranks
from profiler import Options, gpt, measure, measure_layers
from profiler.clock import HostClock
from profiler.models import PAPER_MODELS
from profiler.ranks import all_ranks
from profiler.taps import Tap
from runtime_client import split
from tests.profiler.emulated import B_MS, F_MS, HELD, KEPT, W_MS, WIDTH
from zbplan.profile import Profile

PROFILES = Path(__file__).parent / "profiles"
STEPS = 40
ROUNDS = 3
TABLE_9 = {"T_F": 18.522, "T_B": 18.086, "T_W": 9.337, "T_comm": 0.601}
"""Milliseconds of the 1.5B model on 8 A100 with 24 microbatches."""


def emulated() -> Iterator[Claim]:
    """Measure and train stages that sleep 37.5 to 75 ms and hold known bytes, on 4 ranks."""
    found, profile = _train("emulated", ranks=4)
    for name, ms in (("t_f_ms", F_MS), ("t_b_ms", B_MS), ("t_w_ms", W_MS)):
        yield Claim(f"emulated {name}, worst stage", _worst(profile, name, EMULATED_FACTOR * ms), 0.02)
    row = 4 * WIDTH
    bytes_found = profile.m_b_bytes + profile.m_w_bytes
    yield Claim("emulated bytes", float(bytes_found != [row + HELD + row] * 3 + [row + HELD + 4] + [KEPT] * 4), 0)
    yield _iteration("emulated", found, 0.03)


def real() -> Iterator[Claim]:
    """Measure and train real GPT stages on two single-threaded ranks, each pinned to a core."""
    found, profile = _train("gpt", ranks=2)
    _keep("gpt-2-ranks", profile)
    yield _iteration("gpt", found, 0.10)


def paper() -> Iterator[Claim]:
    """Measure the paper's 1.5B model in bf16, all stages in turn on one CUDA device; its own times are Table 9's."""
    if not torch.cuda.is_available():
        print("     paper: found no CUDA device; skipped")
        return
    size = PAPER_MODELS["gpt-1.5b"]
    model = gpt.staged_model(size, size.devices, dtype=torch.bfloat16)
    profile = measure(model, Options(splitter=split, device="cuda", t_comm_ms=TABLE_9["T_comm"], force=True))
    _keep(f"{size.name}-{torch.cuda.get_device_name().replace(' ', '-')}", profile)
    f, b, w = (profile.per_stage(name)[1] for name in ("t_f_ms", "t_b_ms", "t_w_ms"))
    print(f"     paper: T_F : T_B : T_W = 1 : {b / f:.2f} : {w / f:.2f}", end="; ")
    print(f"Table 9 1 : {TABLE_9['T_B'] / TABLE_9['T_F']:.2f} : {TABLE_9['T_W'] / TABLE_9['T_F']:.2f}")
    blocks, sbh = 3, size.sequence * size.microbatch_size * size.hidden
    m_b = blocks * (34 * sbh + 5 * size.heads * size.sequence**2 * size.microbatch_size)
    print(f"     paper: M_B {profile.per_stage('m_b_bytes')[1]:.4g} bytes", end="; ")
    print(f"Table 1 {m_b:.4g}, {blocks * 34 * sbh:.4g} without the attention matrix, which is not kept here")
    yield Claim("paper M_W against Table 1's 32sbh a block", profile.per_stage("m_w_bytes")[1] / (96 * sbh) - 1, 0.03)


def layers() -> Iterator[Claim]:
    """Hold sums over layers, identical ones measured once, against stages measured as a whole."""
    alone_on_a_core(0)
    options = Options(splitter=split, steady=15, t_comm_ms=0.0, force=True)
    layered, staged = gpt.layered_model(BENCHMARK_GPT), gpt.staged_model(BENCHMARK_GPT, 2)
    rounds = [(measure_layers(layered, 2, options), measure(staged, options)) for _ in range(ROUNDS)]
    summed, whole = zip(*rounds, strict=True)
    _keep("gpt-layers", summed[-1])
    for name in ("t_f_ms", "t_b_ms", "t_w_ms", "m_b_bytes", "m_w_bytes", "m_static_bytes"):
        pairs = zip(_least(summed, name), _least(whole, name), strict=True)
        yield Claim(f"layers {name}, worst stage", max(abs(a / b - 1) for a, b in pairs), 0.03)


def recorder() -> Iterator[Claim]:
    """Hold what listening to a schedule costs per op against a step; print recorded and bare steps side by side."""
    alone_on_a_core(0)
    with all_ranks():
        stage = PipelineStage(gpt.staged_model(BENCHMARK_GPT, 1).build(0), 0, 1, torch.device("cpu"))
        microbatches = 4
        schedule = ScheduleGPipe(stage, microbatches, loss_fn=gpt.loss)
        tap, clock = Tap(schedule), HostClock()
        tokens = gpt.layered_model(BENCHMARK_GPT).microbatch[0].repeat(microbatches, 1)

        def step_ms(*, listening: bool) -> float:
            start = perf_counter_ns()
            if listening:
                with tap.listening(clock, lambda *_: None):
                    schedule.step(tokens, target=tokens)
            else:
                schedule.step(tokens, target=tokens)
            return (perf_counter_ns() - start) / 1e6

        step_ms(listening=True)
        both = [(step_ms(listening=False), step_ms(listening=True)) for _ in range(STEPS)]
    bare_ms, heard_ms = (median(column) for column in zip(*both, strict=True))
    print(f"     recorder: step {bare_ms:.2f} ms alone, {heard_ms:.2f} ms recorded ({heard_ms / bare_ms - 1:+.2%})")
    ops = 3 * microbatches  # F, BW and the loss
    yield Claim(f"recorder, {_cost_ms() * 1e3:.2f} µs an op", ops * _cost_ms() / bare_ms, 0.01)


def _cost_ms(calls: int = 20_000) -> float:
    """Return what listening adds to a call."""

    class Stage:
        stage_index = 0
        dw_builder = None

        def forward_one_chunk(self) -> None: ...

        backward_one_chunk = backward_weight_one_chunk = forward_one_chunk

    class Schedule:
        _stages = (Stage(),)
        _loss_fn = None

    tap, marks = Tap(Schedule()), []
    stage = tap.stages[0]

    def per_call_ms() -> float:
        start = perf_counter_ns()
        for _ in range(calls):
            stage.forward_one_chunk()
        return (perf_counter_ns() - start) / 1e6 / calls

    bare_ms = per_call_ms()
    with tap.listening(HostClock(), lambda *mark: marks.append(mark)):
        return per_call_ms() - bare_ms


def _train(kind: str, *, ranks: int) -> tuple[dict[str, float], Profile]:
    """Profile, plan and train on real ranks; return what rank 0 found."""
    with tempfile.TemporaryDirectory(prefix="zbplan-profiling-") as folder:
        run_ranks(ranks, "benchmarks.profiling_worker", kind, folder)
        found = json.loads((Path(folder) / "found.json").read_text())
        return found, Profile.read(Path(folder) / "profile.json")


def _iteration(kind: str, found: dict[str, float], most: float) -> Claim:
    measured, predicted = found["measured_ms"], found["predicted_ms"]
    text = f"{kind} iteration, predicted {predicted:.1f} ms, measured {measured:.1f} ms"
    return Claim(text, abs(measured / predicted - 1), most)


def _least(profiles: Sequence[Profile], name: str) -> list[float]:
    """Return per stage the least of several measurements: what else a machine does only adds."""
    return [min(column) for column in zip(*(profile.per_stage(name) for profile in profiles), strict=True)]


def _worst(profile: Profile, name: str, right: float) -> float:
    return max(abs(found / right - 1) for found in profile.per_stage(name))


def _keep(name: str, profile: Profile) -> None:
    PROFILES.mkdir(exist_ok=True)
    (PROFILES / f"{name}.json").write_text(profile.to_json() + "\n", encoding="utf-8")


BENCHMARKS: dict[str, Callable[[], Iterator[Claim]]] = {
    "emulated": emulated,
    "real": real,
    "paper": paper,
    "layers": layers,
    "recorder": recorder,
}


def main() -> int:
    """Run what is asked for and return 1 if a claim does not hold."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("names", nargs="*", metavar="NAME", help=f"of {', '.join(BENCHMARKS)} (default: all)")
    names = parser.parse_args().names or BENCHMARKS
    return exit_status(claim for name in names for claim in BENCHMARKS[name]())


if __name__ == "__main__":
    sys.exit(main())
