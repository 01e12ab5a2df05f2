"""The process side of ``solver.process``: reads one job, runs its part, writes news."""

from __future__ import annotations

import json
import os
import signal
import sys
import threading
import time
from collections.abc import Callable
from dataclasses import dataclass
from typing import IO, Any

import numpy as np

from solver.outcome import Outcome
from zbplan.instance import Instance, Orders
from zbplan.problem import Problem


@dataclass(frozen=True)
class Job:
    """What to do.

    Attributes
    ----------
    incumbent
        Legal orders.
    bound
        A proven lower bound in ticks.
    until
        Monotonic seconds at which the time is up.
    threads
        How many an exact solver may use.
    """

    part: str
    instance: Instance
    incumbent: Orders
    bound: int
    until: float
    threads: int

    @classmethod
    def read(cls, line: str) -> Job:
        """Return the job that a line of JSON holds."""
        fields = json.loads(line)
        return cls(
            part=fields["part"],
            instance=Problem.parse(fields["problem"]).instance(fields["placement"]),
            incumbent=Orders.of([np.array(ops, dtype=np.int64) for ops in fields["orders"]]),
            bound=fields["bound"],
            until=time.monotonic() + fields["time_limit_s"],
            threads=fields["threads"],
        )

    @property
    def remaining_s(self) -> float:
        """Seconds left."""
        return max(0.0, self.until - time.monotonic())


class Reporter:
    """Writes news; other output of this process, such as a solver's log, goes elsewhere."""

    def __init__(self, stream: IO[str]) -> None:
        self._stream = stream
        self._lock = threading.Lock()

    def orders(self, orders: Orders) -> None:
        """Tell of better orders."""
        self._write({"orders": [orders.on(device).tolist() for device in range(len(orders.offsets) - 1)]})

    def bound(self, ticks: int, reason: str) -> None:
        """Tell of a better bound."""
        self._write({"bound": ticks, "reason": reason})

    def outcome(self, outcome: Outcome, reason: str) -> str:
        """Tell what an exact solver claims; return its word for how it ended."""
        self.bound(outcome.bound, reason)
        if outcome.orders is not None:
            self.orders(outcome.orders)
        return outcome.status.lower()

    def end(self, words: str) -> None:
        """Tell how it ended."""
        self._write({"end": words})

    def _write(self, news: dict[str, Any]) -> None:
        with self._lock:
            self._stream.write(json.dumps(news) + "\n")
            self._stream.flush()


def cp_sat(job: Job, report: Reporter) -> str:
    """Solve with CP-SAT."""
    from solver.cp_sat import Listener, Settings, solve_cp_sat

    reason = "the search of CP-SAT leaves nothing below"
    listener = Listener(report.orders, lambda ticks: report.bound(ticks, reason))
    outcome = solve_cp_sat(
        job.instance,
        job.incumbent,
        bound=job.bound,
        time_limit_s=job.remaining_s,
        settings=Settings(workers=job.threads),
        listener=listener,
    )
    return report.outcome(outcome, reason)


def ilp_highs(job: Job, report: Reporter) -> str:
    """Solve Appendix G's program with HiGHS."""
    return _ilp(job, report, "highs")


def ilp_cbc(job: Job, report: Reporter) -> str:
    """Solve Appendix G's program with CBC."""
    return _ilp(job, report, "cbc")


def _ilp(job: Job, report: Reporter, solver: str) -> str:
    from solver.ilp import solve_ilp

    outcome = solve_ilp(
        job.instance,
        job.incumbent,
        bound=job.bound,
        time_limit_s=job.remaining_s,
        solver=solver,
        threads=job.threads,
    )
    return report.outcome(outcome, f"the integer linear program leaves nothing below, says {solver}")


def policies(job: Job, report: Reporter) -> str:
    """Search for better policies of the list scheduler."""
    from heuristic import THOROUGH, flows, improvements
    from heuristic.objective import least

    starts = [job.incumbent, *flows(job.instance)]
    report.orders(least(job.instance, starts))
    for orders in improvements(job.instance, starts, effort=THOROUGH):
        report.orders(orders)
    return "done"


def improve(job: Job, report: Reporter) -> str:
    """Improve windows of the orders and what repeats in them."""
    from solver.improve import improve as better

    half_s = job.remaining_s / 2
    steps = better(
        job.instance,
        job.incumbent,
        bound=job.bound,
        stop=lambda: job.remaining_s <= 0,
        half=lambda: job.remaining_s <= half_s,
    )
    for orders in steps:
        report.orders(orders)
    return "done"


PARTS: dict[str, Callable[[Job, Reporter], str]] = {
    "cp_sat": cp_sat,
    "ilp_highs": ilp_highs,
    "ilp_cbc": ilp_cbc,
    "improve": improve,
    "policies": policies,
}


def main() -> None:
    """Run one job."""
    report = Reporter(os.fdopen(os.dup(1), "w"))
    os.dup2(2, 1)
    job = Job.read(sys.stdin.readline())
    threading.Thread(target=_die_with_parent, daemon=True).start()
    try:
        report.end(PARTS[job.part](job, report))
    except Exception as error:  # whatever breaks in a solver costs its part only, and is named
        report.end(f"failed: {type(error).__name__}: {error}")


def _die_with_parent() -> None:
    """End this process, and what it started, when nobody listens any more."""
    sys.stdin.read()
    os.killpg(0, signal.SIGKILL)


if __name__ == "__main__":
    main()
