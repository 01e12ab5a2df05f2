"""How good and how fast are constructive plans? Rows that were published, targets between them, and milliseconds.

``python -m benchmarks.heuristic [NAME …] [--rows PATTERN]`` prints a row per claim and fails if one does not hold. All
of it runs on one core; seconds are those of the processor.
"""

from __future__ import annotations

import argparse
import re
import sys
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from time import perf_counter_ns, process_time
from typing import Any

from benchmarks.claim import Claim, exit_status
from heuristic import THOROUGH, best_per_placement, construct, improvements
from heuristic.objective import iteration
from heuristic.zb_h1 import zb_h1
from solver.bounds import lower_bound
from tests.heuristic.problems import published_rows
from zbplan.problem import Problem
from zbplan.simulate import measure, simulate
from zbplan.tighten import tighten

AT_ONCE_S, IN_ALL_S = 1.0, 15.0
"""Seconds that the named schedules and the ladder may take with up to 16 devices, and the longest search."""

ROUNDED_MS = 0.0005
"""Published times are rounded to a microsecond."""

ROUNDS = 5


@dataclass(frozen=True)
class Target:
    """What a search must reach on a published row's problem with another limit (or other fields of the profile).

    ``most`` is milliseconds, or a bubble rate if it is below 1.
    """

    row: str
    limit: str | None
    most: float
    profile: tuple[tuple[str, float], ...] = ()

    @property
    def problem(self) -> Problem:
        """The row's problem, changed."""
        (asked,) = (row["problem"] for row in published_rows() if row["id"] == self.row)
        limit = {} if self.limit is None else {"memory_limit": self.limit}
        profile = {**asked["profile"], **dict(self.profile)}
        return Problem.parse({**asked, **limit, "profile": profile, "optimizer": "post_validated"})

    def __str__(self) -> str:
        return " ".join([self.row, *filter(None, [self.limit]), *(f"{name}={value}" for name, value in self.profile)])


LINEAR, V16, V24, V32 = "T5:1.5B:p8:m24:table1:1p", "T8:6.2B:p16:m48", "T8:14.6B:p24:m72", "T8:28.3B:p32:m96"
TARGETS = (
    *(Target(LINEAR, limit, ms) for limit, ms in (("0.5x", 2101), ("0.75x", 1528), ("0.9x", 1379))),
    *(Target(LINEAR, limit, ms) for limit, ms in (("1.25x", 1219), ("1.5x", 1164))),
    *(Target(LINEAR, "2x", rate, (("t_comm_ms", ms),)) for ms, rate in ((18, 0.2295), (40, 0.462))),
    *(Target(f"{row}:ZB-V_1p", None, rate) for row, rate in ((V16, 0.0698), (V24, 0.063), (V32, 0.0585))),
    *(Target(f"{row}:V-Half", None, rate) for row, rate in ((V16, 0.182), (V24, 0.1795), (V32, 0.1785))),
    *(Target(f"{row}:V-Min", None, rate) for row, rate in ((V16, 0.33), (V24, 0.306), (V32, 0.311))),
    *(Target(f"{V16}:ZB-V_1p", limit, rate) for limit, rate in (("0.75x", 0.14), ("0.5x", 0.224))),
)


SIX, FOURTEEN = "T5:6.2B:p8:m24:table1:1p", "T5:14.6B:p16:m48:table1:1p"
BETWEEN = (
    (LINEAR, 6, 17, "0.8x", 1137.627),
    (LINEAR, 8, 24, "0.63x", 1764.125),
    (LINEAR, 8, 24, "0.37x", 3661.281),
    (LINEAR, 12, 40, "0.55x", 3402.621),
    (SIX, 8, 64, "0.75x", 6102.263),
    (SIX, 16, 48, "0.68x", 5433.043),
    (FOURTEEN, 8, 48, "0.85x", 1765.140),
    (FOURTEEN, 16, 48, "0.5x", 2577.407),
    (FOURTEEN, 24, 72, "0.6x", 3493.595),
    (f"{V16}:ZB-V_1p", 16, 48, "0.75x", 4293.074),
    (f"{V16}:ZB-V_1p", 16, 48, "0.5x", 4721.950),
)
"""The times of a published row with other devices, microbatches and limit, and the milliseconds of a long search."""

NEAR = 0.05
"""By how much the first plan may be slower than the best that a long search has found."""


def between(pattern: str) -> Iterator[Claim]:
    """Hold the plans that come at once against those of a long search, between the published rows."""
    for row, devices, microbatches, limit, searched_ms in BETWEEN:
        name = f"{row} p{devices} m{microbatches} {limit}"
        if re.search(pattern, name):
            (asked,) = (known["problem"] for known in published_rows() if known["id"] == row)
            stages = devices * asked["profile"]["stages"] // asked["devices"]
            changes = {"devices": devices, "microbatches": microbatches, "memory_limit": limit}
            profile = {**asked["profile"], "stages": stages}
            problem = Problem.parse({**asked, **changes, "profile": profile, "optimizer": "post_validated"})
            found_ms, seconds = _timed(lambda problem=problem: construct(problem).metrics.iteration_ms)
            yield Claim(f"{name}, at once slower than a long search by", found_ms / searched_ms - 1, NEAR)
            yield Claim(f"{name}, seconds at once", seconds, AT_ONCE_S)


def published(pattern: str) -> Iterator[Claim]:
    """Hold plans against the published schedulers, span and makespan each under its own objective."""
    for row in published_rows():
        for optimizer, field in (("post_validated", "span_ms"), ("synchronous", "makespan_ms")):
            peer_ms = row["published"][field]
            if peer_ms is not None and re.search(pattern, row["id"]):
                yield from _against(row["id"], Problem.parse({**row["problem"], "optimizer": optimizer}), peer_ms)


def _against(name: str, problem: Problem, peer_ms: float) -> Iterator[Claim]:
    found_ms, seconds = _timed(lambda: construct(problem).metrics.iteration_ms)
    if problem.devices <= 16:
        yield Claim(f"{name} {problem.optimizer}, seconds at once", seconds, AT_ONCE_S)
    if found_ms > peer_ms + ROUNDED_MS:
        found_ms, seconds = _searched(problem, peer_ms + ROUNDED_MS)
    text = f"{name} {problem.optimizer}, {found_ms:.3f} ms in {seconds:.2f} s to {peer_ms:.3f} ms"
    yield Claim(text, found_ms - peer_ms, ROUNDED_MS)


def optimal(pattern: str) -> Iterator[Claim]:
    """Hold the spans of the paper's Table 5 with twice the memory against their proven bounds."""
    for row in published_rows():
        if re.match(r"T5.*2p$", row["id"]) and re.search(pattern, row["id"]):
            problem = Problem.parse({**row["problem"], "optimizer": "post_validated"})
            found_ms, seconds = _timed(lambda problem=problem: construct(problem).metrics.iteration_ms)
            instance = problem.instance()
            bound_ms = instance.clock.value(lower_bound(instance).ticks)
            yield Claim(f"{row['id']}, {found_ms:.3f} ms above the bound", found_ms - bound_ms, 1e-6)
            yield Claim(f"{row['id']}, seconds", seconds, 1.0)


def targets(pattern: str) -> Iterator[Claim]:
    """Search until a target is reached, or to the end."""
    for target in TARGETS:
        if re.search(pattern, str(target)):
            problem = target.problem
            work_ms = max(construct(problem).metrics.busy_ms)
            most_ms = target.most if target.most > 1 else work_ms / (1 - target.most)
            found_ms, seconds = _searched(problem, most_ms)
            yield Claim(f"{target}, bubble {1 - work_ms / found_ms:.2%} in {seconds:.1f} s, ms", found_ms, most_ms)


def _searched(problem: Problem, enough_ms: float) -> tuple[float, float]:
    """Return the milliseconds that a search reaches at once or until it is good enough, and its seconds."""

    def search() -> float:
        (built,) = best_per_placement(problem)
        instance, orders = problem.instance(), built.orders

        def enough() -> bool:
            return instance.clock.value(iteration(instance, orders)) <= enough_ms

        for better in improvements(instance, [orders], effort=THOROUGH, stop=enough):
            orders = better
        return instance.clock.value(measure(instance, tighten(instance, orders)).iteration)

    return _timed(search)


def speed(_pattern: str) -> Iterator[Claim]:
    """Time first plans and one simulation, warm."""
    for devices, microbatches, most_ms in ((8, 64, 20.0), (32, 256, 300.0), (64, 512, 2000.0)):
        problem = _even(devices, microbatches)
        named = problem.model_copy(update={"method": "zb_h1"})
        text = f"p={devices} m={microbatches}, ms to"
        yield Claim(f"{text} the first legal plan", _least_ms(lambda named=named: construct(named)), most_ms)
    instance = _even(32, 256).instance()
    orders = zb_h1(instance)
    ms = _least_ms(lambda: simulate(instance, orders))
    yield Claim(f"one simulation of {len(orders.ops)} ops, ms", ms, 1.0)


def _even(devices: int, microbatches: int) -> Problem:
    times = {"t_f_ms": 18.522, "t_b_ms": 18.086, "t_w_ms": 9.337, "t_comm_ms": 0.601}
    profile = {"stages": devices, **times, "m_b_bytes": 201216, "m_w_bytes": 73728}
    asked = {"devices": devices, "microbatches": microbatches, "placement": "linear", "memory_limit": "1x"}
    return Problem.parse({"profile": profile, **asked})


def _timed(call: Callable[[], float]) -> tuple[float, float]:
    start_s = process_time()
    return call(), process_time() - start_s


def _least_ms(call: Callable[[], Any]) -> float:
    def once_ms() -> float:
        start = perf_counter_ns()
        call()
        return (perf_counter_ns() - start) / 1e6

    once_ms()
    return min(once_ms() for _ in range(ROUNDS))


BENCHMARKS: dict[str, Callable[[str], Iterator[Claim]]] = {
    "speed": speed,
    "optimal": optimal,
    "targets": targets,
    "between": between,
    "published": published,
}


def main() -> int:
    """Run what is asked for and return 1 if a claim does not hold."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("names", nargs="*", metavar="NAME", help=f"of {', '.join(BENCHMARKS)} (default: all)")
    parser.add_argument("--rows", default="", metavar="PATTERN", help="rows whose name has this regular expression")
    asked = parser.parse_args()
    construct(_even(2, 2))  # compiles, or reads what is compiled
    return exit_status(claim for name in asked.names or BENCHMARKS for claim in BENCHMARKS[name](asked.rows))


if __name__ == "__main__":
    sys.exit(main())
