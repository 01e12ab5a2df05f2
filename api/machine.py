"""Machine: how many cores and how much memory this process may use: a container may have less than the machine."""

from __future__ import annotations

import math
import os
from collections.abc import Iterator, Mapping
from pathlib import Path, PurePosixPath

ROOT = Path("/")
"""Where ``/proc`` and ``/sys`` are."""


def memory_bytes(root: Path = ROOT) -> int:
    """Return the memory of the machine, or the least that a control group of this process allows."""
    installed = os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES")
    files: Mapping[str, tuple[str, ...]] = {"": ("memory.max",), "memory": ("memory.limit_in_bytes",)}
    return min([installed, *(int(limit) for (limit,) in _limits(root, files) if limit.isdecimal())])


def cores(root: Path = ROOT) -> int:
    """Return on how many cores this process may run, or the least that a control group's share of time amounts to."""
    files: Mapping[str, tuple[str, ...]] = {"": ("cpu.max",), "cpu": ("cpu.cfs_quota_us", "cpu.cfs_period_us")}
    shares = (" ".join(limit).split() for limit in _limits(root, files))
    allowed = (int(quota) / int(period) for quota, period in shares if quota.isdecimal())
    return min([len(os.sched_getaffinity(0)), *(max(1, math.ceil(share)) for share in allowed)])


def _limits(root: Path, files: Mapping[str, tuple[str, ...]]) -> Iterator[tuple[str, ...]]:
    """Yield what files of the control groups of this process say, by the controller that has them.

    Version 2 has one tree without a name, version 1 a tree for each controller. There are no such files at the root of
    a machine, and where there is no limit they hold ``max``, -1, or more than any machine has.
    """
    for controller, group in _groups(root):
        if controller in files:
            # A container may see the name that its group has outside; what is mounted begins at the group itself.
            for part in (group, *group.parents):
                folder = root / "sys/fs/cgroup" / controller / part.relative_to("/")
                texts = tuple(_text(folder / name) for name in files[controller])
                if all(texts):
                    yield texts


def _groups(root: Path) -> Iterator[tuple[str, PurePosixPath]]:
    for line in _text(root / "proc/self/cgroup").splitlines():
        _, controllers, group = line.split(":", 2)
        for controller in controllers.split(","):
            yield controller, PurePosixPath(group)


def _text(path: Path) -> str:
    try:
        return path.read_text().strip()
    except OSError:
        return ""
