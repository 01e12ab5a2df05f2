"""SQLite on a disk without room: refused for now, nothing lost, and all well when there is room again."""

from __future__ import annotations

import resource
import subprocess
from collections.abc import Iterator
from contextlib import suppress
from pathlib import Path

import pytest

from tests.api.servers import Server, members, problem, running, wait_until

DISK_BYTES = 4 << 20
PAGE_BYTES = 4096
"""Of SQLite: whatever it writes down takes a page and what goes before it."""


@pytest.fixture
def disk(tmp_path: Path) -> Iterator[Path]:
    """A small file system of its own, where mounting one is allowed."""
    folder = tmp_path / "disk"
    folder.mkdir()
    mounting = ["mount", "-t", "tmpfs", "-o", f"size={DISK_BYTES}", "zbplan", str(folder)]
    try:
        mounted = subprocess.run(mounting, capture_output=True, text=True, timeout=60)
    except FileNotFoundError:
        pytest.skip("there is no mount on this machine")
    if mounted.returncode != 0:
        pytest.skip(f"a disk to fill cannot be mounted: {mounted.stderr.strip()}")
    yield folder
    subprocess.run(["umount", str(folder)], check=True, timeout=60)


class Filled:
    """A disk that a file leaves no room on."""

    def __init__(self, disk: Path) -> None:
        self._filler = disk / "filler"

    def take(self) -> None:
        """Leave no room."""
        with self._filler.open("wb", buffering=0) as file, suppress(OSError):
            while True:
                file.write(bytes(4096))

    def give_back(self) -> None:
        """Leave room again."""
        self._filler.unlink()


class Limited:
    """The processes of a service, which may write no file of more than a page: this can be had on any disk."""

    def __init__(self, server: Server) -> None:
        self._server = server

    def take(self) -> None:
        """Let nothing be written behind the first page of a file."""
        self._limit(PAGE_BYTES)

    def give_back(self) -> None:
        """Let files grow again."""
        self._limit(None)

    def _limit(self, most: int | None) -> None:
        leader = self._server.process.pid
        for process in (leader, *members(leader)):
            with suppress(ProcessLookupError):
                _, hard = resource.prlimit(process, resource.RLIMIT_FSIZE)
                resource.prlimit(process, resource.RLIMIT_FSIZE, (hard if most is None else most, hard))


def refuses_for_now_and_loses_nothing(server: Server, room: Filled | Limited) -> None:
    stored = server.post(problem(), wait_s=30)
    held = server.begin(problem("held"))
    room.take()
    refused = problem()
    wait_until(lambda: server.post(refused).status_code == 503)
    answer = server.post(refused)
    assert answer.headers["content-type"] == "application/problem+json"
    assert int(answer.headers["retry-after"]) > 0
    assert server.get(f"/v1/plans/{stored.json()['key']}").content == stored.content
    server.let(held, "release")
    room.give_back()
    assert server.get(f"/v1/plans/{held}", Prefer="wait=30").json()["status"] == "done"
    assert server.post(refused, wait_s=30).json()["status"] == "done"
    assert len(server.begun(held)) == 1


def test_full_disk_refuses_for_now_and_loses_nothing(tmp_path: Path, disk: Path) -> None:
    with running(tmp_path, database_url=f"sqlite:///{disk / 'plans.sqlite3'}") as server:
        refuses_for_now_and_loses_nothing(server, Filled(disk))


def test_a_file_that_may_not_grow_refuses_for_now_and_loses_nothing(tmp_path: Path) -> None:
    with running(tmp_path) as server:
        refuses_for_now_and_loses_nothing(server, Limited(server))
