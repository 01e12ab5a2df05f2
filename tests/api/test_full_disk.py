"""SQLite on a disk without room: refused for now, nothing lost, and all well when there is room again."""

from __future__ import annotations

import subprocess
from collections.abc import Iterator
from contextlib import suppress
from pathlib import Path

import pytest

from tests.api.servers import problem, running, wait_until

DISK_BYTES = 4 << 20


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


def fill(disk: Path) -> Path:
    """Leave no room; return the file that takes it."""
    filler = disk / "filler"
    with filler.open("wb", buffering=0) as file, suppress(OSError):
        while True:
            file.write(bytes(4096))
    return filler


def test_full_disk_refuses_for_now_and_loses_nothing(tmp_path: Path, disk: Path) -> None:
    with running(tmp_path, database_url=f"sqlite:///{disk / 'plans.sqlite3'}") as server:
        stored = server.post(problem(), wait_s=30)
        held = server.begin(problem("held"))
        filler = fill(disk)
        refused = problem()
        wait_until(lambda: server.post(refused).status_code == 503)
        answer = server.post(refused)
        assert answer.headers["content-type"] == "application/problem+json"
        assert int(answer.headers["retry-after"]) > 0
        assert server.get(f"/v1/plans/{stored.json()['key']}").content == stored.content
        server.let(held, "release")
        filler.unlink()
        assert server.get(f"/v1/plans/{held}", Prefer="wait=30").json()["status"] == "done"
        assert server.post(refused, wait_s=30).json()["status"] == "done"
        assert len(server.begun(held)) == 1
