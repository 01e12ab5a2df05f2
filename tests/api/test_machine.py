"""What of the machine a container leaves to the service, by what both versions of control groups say."""

from __future__ import annotations

import os
from pathlib import Path

import pytest

from api.machine import cores, memory_bytes
from api.settings import Settings

INSTALLED = os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES")
CORES = len(os.sched_getaffinity(0))
UNLIMITED_V1 = 9223372036854771712
V1 = "4:memory:{}\n1:cpu,cpuacct:/x\n0::/\n"


@pytest.mark.parametrize(
    ("groups", "limits", "expected"),
    [
        ("", {}, INSTALLED),
        ("0::/\n", {"memory.max": "1000\n"}, 1000),
        ("0::/\n", {"memory.max": "max\n"}, INSTALLED),
        ("0::/\n", {"memory.max": f"{2 * INSTALLED}\n"}, INSTALLED),
        ("0::/a/b\n", {"a/b/memory.max": "max", "a/memory.max": "3000"}, 3000),
        ("0::/a/b\n", {"a/b/memory.max": "2000", "a/memory.max": "3000"}, 2000),
        (V1.format("/docker/d"), {"memory/memory.limit_in_bytes": "1000\n"}, 1000),
        (V1.format("/a"), {"memory/memory.limit_in_bytes": f"{UNLIMITED_V1}\n"}, INSTALLED),
        (V1.format("/a"), {"memory/a/memory.limit_in_bytes": "1000\n"}, 1000),
        ("12:cpuset,memory:/a\n", {"memory/a/memory.limit_in_bytes": "1000\n"}, 1000),
    ],
)
def test_least_limit_counts(tmp_path: Path, groups: str, limits: dict[str, str], expected: int) -> None:
    assert memory_bytes(container(tmp_path, groups, limits)) == expected


@pytest.mark.parametrize(
    ("groups", "limits", "expected"),
    [
        ("0::/\n", {"cpu.max": "max 100000\n"}, CORES),
        ("0::/\n", {"cpu.max": "50000 100000\n"}, 1),
        ("0::/\n", {"cpu.max": f"{CORES * 300000} 100000\n"}, CORES),
        ("0::/a\n", {"a/cpu.max": "max 100000", "cpu.max": "100000 100000"}, 1),
        ("2:cpu,cpuacct:/a\n", {"cpu/a/cpu.cfs_quota_us": "-1\n", "cpu/a/cpu.cfs_period_us": "100000\n"}, CORES),
        ("2:cpu,cpuacct:/a\n", {"cpu/cpu.cfs_quota_us": "90000\n", "cpu/cpu.cfs_period_us": "100000\n"}, 1),
    ],
)
def test_least_share_of_time_counts(tmp_path: Path, groups: str, limits: dict[str, str], expected: int) -> None:
    assert cores(container(tmp_path, groups, limits)) == expected


def container(root: Path, groups: str, limits: dict[str, str]) -> Path:
    """Write what a process sees of its control groups."""
    for name, text in {"proc/self/cgroup": groups, **{f"sys/fs/cgroup/{key}": limits[key] for key in limits}}.items():
        (root / name).parent.mkdir(parents=True, exist_ok=True)
        (root / name).write_text(text)
    return root


def test_without_control_groups_it_is_the_machine(tmp_path: Path) -> None:
    assert (memory_bytes(tmp_path), cores(tmp_path)) == (INSTALLED, CORES)


def test_solver_processes_share_what_there_is() -> None:
    assert Settings.parse({"solver_workers": 1}).memory_per_solver_bytes == memory_bytes() * 3 // 4
