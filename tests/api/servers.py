"""Real services for tests: a process of their own, a free loopback port, and no process left behind."""

from __future__ import annotations

import itertools
import json
import os
import signal
import subprocess
import sys
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from types import MappingProxyType
from typing import Any

import httpx

from tests.api.solves import begun, let

ROOT = Path(__file__).parents[2]
DATABASE = "plans.sqlite3"
TIMEOUT_S = 60
FOR_TESTS = {"solve": "tests.api.solves:scripted", "near_plans": 0}
"""Tests make up problems that are near to each other, and must not depend on each other."""

SERVE = """
import json, sys
from pkgutil import resolve_name
from api.server import serve
from api.settings import Settings
for name, value in json.loads(sys.argv[2]).items():
    module, _, constant = name.rpartition(".")
    setattr(resolve_name(module), constant, value)
serve(Settings.parse_json(sys.argv[1]))
"""

WORKER = (str(Path(sys.executable).with_name("zbplan")), "worker")

_unlike = itertools.count(1)


def problem(does: str = "", **changes: Any) -> dict[str, Any]:
    """Return a small problem that no other call returns; its solve does what ``tests.api.solves`` says."""
    profile = {
        "name": does,
        "stages": 4,
        "t_f_ms": 10 + next(_unlike) / 1000,
        "t_b_ms": 10,
        "t_w_ms": 5,
        "t_comm_ms": 0.5,
        "m_b_bytes": 2,
        "m_w_bytes": 1,
    }
    return {"profile": profile, "devices": 4, "microbatches": 8, "memory_limit": "1x", "time_limit_s": 10, **changes}


def improvable(does: str = "", **changes: Any) -> dict[str, Any]:
    """Return a problem whose plan is far from its bound, whatever solves it: it asks for fused backwards."""
    return problem(does, method="1f1b", memory_limit=None, **changes)


@dataclass(frozen=True)
class Server:
    """A running service."""

    process: subprocess.Popen[str]
    url: str
    folder: Path

    @property
    def database(self) -> Path:
        return self.folder / DATABASE

    def log(self) -> str:
        return (self.folder / "log.txt").read_text()

    def client(self, **options: Any) -> httpx.Client:
        headers = {"Accept-Encoding": "identity", **options.pop("headers", {})}
        return httpx.Client(base_url=self.url, timeout=TIMEOUT_S, headers=headers, **options)

    def begin(self, problem: dict[str, Any]) -> str:
        """Post a problem and return its key when its solve has begun and everyone can see it."""
        key: str = self.post(problem).json()["key"]
        wait_until(lambda: self.begun(key) and self.get(f"/v1/plans/{key}").json()["status"] == "solving")
        return key

    def begun(self, key: str) -> list[int]:
        """Return the process of every solve of a problem that began."""
        return begun(self.folder, key)

    def let(self, key: str, what: str) -> None:
        """Let a solve go on."""
        let(self.folder, key, what)

    def post(self, value: dict[str, Any], wait_s: int = 0, path: str = "/v1/plans") -> httpx.Response:
        headers = {"Content-Type": "application/json", "Prefer": f"wait={wait_s}"}
        with self.client() as client:
            return client.post(path, content=json.dumps(value), headers=headers)

    def get(self, path: str, **headers: str) -> httpx.Response:
        with self.client() as client:
            return client.get(path, headers=headers)

    def stop(self, how: signal.Signals = signal.SIGTERM) -> int:
        """Send a signal and return the exit status; every worker must be gone soon after."""
        self.process.send_signal(how)
        status = self.process.wait(TIMEOUT_S)
        wait_until(lambda: not members(self.process.pid))
        return status


@contextmanager
def running(folder: Path, *, patched: Mapping[str, float] = MappingProxyType({}), **settings: Any) -> Iterator[Server]:
    """Run a service whose store is in a folder, with the solver of ``tests.api.solves`` and other constants."""
    chosen = {"port": 0, "database_url": f"sqlite:///{folder / DATABASE}", **settings}
    command = [sys.executable, "-c", SERVE, json.dumps({**FOR_TESTS, **chosen}), json.dumps(dict(patched))]
    with _process(command, folder, {}, announcing="zbplan: listening on http://") as (process, line):
        yield Server(process, line.split()[-1], folder)


@contextmanager
def working(folder: Path, **settings: Any) -> Iterator[subprocess.Popen[str]]:
    """Run ``zbplan worker`` as it is, with the solver of ``tests.api.solves``."""
    environment = {f"ZBPLAN_{name.upper()}": str(value) for name, value in {**FOR_TESTS, **settings}.items()}
    with _process(WORKER, folder, environment, announcing="zbplan: ") as (process, _):
        yield process


@contextmanager
def _process(
    command: Sequence[str], folder: Path, environment: dict[str, str], announcing: str
) -> Iterator[tuple[subprocess.Popen[str], str]]:
    with (folder / "log.txt").open("a") as log:
        process = subprocess.Popen(
            command,
            cwd=ROOT,
            env={**os.environ, "PYTHONPATH": str(ROOT), "ZBPLAN_TEST_FOLDER": str(folder), **environment},
            stdout=subprocess.PIPE,
            stderr=log,
            text=True,
            start_new_session=True,
        )
    try:
        yield process, _announced(process, folder, announcing)
    finally:
        process.terminate()
        try:
            process.wait(TIMEOUT_S)
        finally:
            left = [member for member in members(process.pid) if not _gone(member)]
            for member in left:
                os.kill(member, signal.SIGKILL)
            process.wait(TIMEOUT_S)
            if process.stdout is not None:
                process.stdout.close()
        assert not left, f"processes left behind: {left}"


def _announced(process: subprocess.Popen[str], folder: Path, announcing: str) -> str:
    assert process.stdout is not None
    line = process.stdout.readline()
    assert line.startswith(announcing), line + (folder / "log.txt").read_text()
    return line


def _gone(member: int) -> bool:
    try:
        wait_until(lambda: not Path(f"/proc/{member}").exists())
    except AssertionError:
        return False
    return True


def members(session: int) -> list[int]:
    """Return the processes of a session that live, its leader aside."""
    found = []
    for status in Path("/proc").glob("[0-9]*/stat"):
        try:
            state, _, _, of_session = status.read_text().rpartition(")")[2].split()[:4]
        except OSError:
            continue
        if int(of_session) == session and state != "Z" and int(status.parent.name) != session:
            found.append(int(status.parent.name))
    return found


def wait_until(true: Callable[[], object], seconds: float = TIMEOUT_S) -> None:
    """Wait until something is true."""
    deadline = time.monotonic() + seconds
    while not true():
        assert time.monotonic() < deadline, "it did not become true in time"
        time.sleep(0.02)
