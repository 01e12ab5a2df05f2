"""A part of a solve in a process of its own, so that it can be stopped whatever it does.

The two sides talk in lines of JSON. The job goes to the standard input, which then stays open: its end tells the
process that nobody waits any more. News come from the standard output: ``orders`` (ops per device), ``bound`` (ticks)
with its ``reason``, and at last ``end`` (how it ended, in words).
"""

from __future__ import annotations

import json
import os
import queue
import signal
import subprocess
import sys
import tempfile
import threading
from collections.abc import Sequence
from contextlib import suppress
from dataclasses import dataclass
from typing import Any

import numpy as np

from solver.bounds import LowerBound
from solver.lane import Lane
from solver.search import Search
from zbplan.instance import Orders

COMMAND = (sys.executable, "-m", "solver.worker")
"""Runs the part that its job names."""

POLL_S = 0.05
GRACE_S = 0.3
"""Seconds before the time is up at which a process should end by itself."""


class Process:
    """A running process and its news."""

    def __init__(self, command: Sequence[str], job: dict[str, Any]) -> None:
        self._errors = tempfile.TemporaryFile()  # noqa: SIM115 - lives as long as the process
        try:
            self._process = subprocess.Popen(  # noqa: S603 - our own command
                command,
                stdin=subprocess.PIPE,
                stdout=subprocess.PIPE,
                stderr=self._errors,
                start_new_session=True,
                env={**os.environ, "PYTHONPATH": os.pathsep.join(path for path in sys.path if path)},
            )
        except OSError:
            self._errors.close()
            raise
        self._news: queue.SimpleQueue[bytes] = queue.SimpleQueue()
        self._reader = threading.Thread(target=self._read, daemon=True)
        self._reader.start()
        self._send(job)

    def _send(self, job: dict[str, Any]) -> None:
        assert self._process.stdin is not None  # noqa: S101 - a pipe was asked for
        with suppress(BrokenPipeError):
            self._process.stdin.write(json.dumps(job).encode() + b"\n")
            self._process.stdin.flush()

    def _read(self) -> None:
        assert self._process.stdout is not None  # noqa: S101 - a pipe was asked for
        for line in self._process.stdout:
            self._news.put(line)
        self._news.put(b"")

    def next_news(self) -> dict[str, Any] | None:
        """Return the next news, an empty one if none came within a moment, or None when there will be no more."""
        try:
            line = self._news.get(timeout=POLL_S)
        except queue.Empty:
            return {}
        if not line:
            return None
        try:
            news = json.loads(line)
        except ValueError:
            return {}
        return news if isinstance(news, dict) else {}

    def stop(self) -> str:
        """End the process with everything that it started; return its last words if it failed by itself."""
        with suppress(subprocess.TimeoutExpired):
            self._process.wait(timeout=0 if self._reader.is_alive() else GRACE_S)
        status = self._process.returncode
        with suppress(ProcessLookupError):
            os.killpg(self._process.pid, signal.SIGKILL)
        self._process.wait()
        self._reader.join()
        for pipe in (self._process.stdin, self._process.stdout):
            if pipe is not None:
                with suppress(BrokenPipeError):
                    pipe.close()
        words = self._last_words()
        self._errors.close()
        return f"failed with status {status}: {words}" if status else ""

    def _last_words(self) -> str:
        self._errors.seek(0)
        lines = self._errors.read().decode(errors="replace").strip().splitlines()
        return lines[-1][:200] if lines else "nothing said"


@dataclass(frozen=True)
class External:
    """A part of a solve that runs in a process of its own.

    Attributes
    ----------
    name
        Of the part, as in provenance; the worker looks up what to do under it.
    command
        What to start.
    """

    name: str
    command: tuple[str, ...] = COMMAND

    def __call__(self, search: Search, lane: Lane) -> None:
        """Run until it ends, the time is up or the lane is closed."""
        with search.running(self.name) as words:
            try:
                process = Process(self.command, self._job(search, lane))
            except OSError as error:
                words.append(f"could not start: {error}")
                return
            try:
                words.append(self._listen(search, lane, process))
            finally:
                words.extend(filter(None, [process.stop()]))
            if self.name in lane.liars:
                words.append("claimed a bound above a legal plan: none of its bounds count")

    def _job(self, search: Search, lane: Lane) -> dict[str, Any]:
        orders = lane.plan.orders()
        return {
            "part": self.name,
            "problem": search.problem.canonical,
            "placement": lane.placement,
            "orders": [orders.on(device).tolist() for device in range(lane.instance.devices)],
            "bound": lane.bound.ticks,
            "time_limit_s": max(0.0, search.remaining_s - GRACE_S),
            "threads": search.budget.threads,
        }

    def _listen(self, search: Search, lane: Lane, process: Process) -> str:
        end = "ended without a word"
        while (news := process.next_news()) is not None:
            self._take(search, lane, news)
            end = str(news.get("end", end))[:200]
            if not search.goes_on(lane):
                return "stopped" if search.is_open(lane) else "closed the gap"
        return end

    def _take(self, search: Search, lane: Lane, news: dict[str, Any]) -> None:
        """Keep what is of use; news that cannot be understood change nothing."""
        try:
            if "orders" in news:
                search.offer(lane, _orders(lane, news["orders"]), self.name)
            if "bound" in news:
                search.raise_bound(lane, LowerBound(int(news["bound"]), str(news.get("reason", self.name))), self.name)
        except (TypeError, ValueError, OverflowError):
            return


def _orders(lane: Lane, per_device: list[list[int]]) -> Orders:
    """Return orders whose ops exist.

    Raises
    ------
    ValueError
        If they are no ops of the instance.
    """
    orders = Orders.of([np.array(ops, dtype=np.int64) for ops in per_device])
    known = (orders.ops >= 0) & (orders.ops < lane.instance.duration.size)
    if len(per_device) != lane.instance.devices or not known.all() or (np.diff(orders.offsets) == 0).any():
        raise ValueError("no ops of this instance")
    return orders
