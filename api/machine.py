"""Machine: how much memory this process may use, of which a container may have less than the machine."""

from __future__ import annotations

import os
from collections.abc import Iterator
from pathlib import Path, PurePosixPath


def memory_bytes(root: Path = Path("/")) -> int:
    """Return the memory of the machine, or the least that a control group of this process allows.

    Parameters
    ----------
    root
        Where ``/proc`` and ``/sys`` are.
    """
    installed = os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES")
    return min([installed, *_limits_bytes(root)])


def _limits_bytes(root: Path) -> Iterator[int]:
    for mount, file, group in _memory_groups(root):
        # A container may see the name that its group has outside; what is mounted then begins at the group itself.
        for part in (group, *group.parents):
            limit = _text(root / mount / part.relative_to("/") / file).strip()
            if limit.isdecimal():  # there is no file at the root of a machine, and where there is no limit it says so
                yield int(limit)


def _memory_groups(root: Path) -> Iterator[tuple[str, str, PurePosixPath]]:
    """Yield, for either version of control groups, where they are mounted, what says the limit, and the own group."""
    for line in _text(root / "proc/self/cgroup").splitlines():
        _, controllers, group = line.split(":", 2)
        if controllers == "":
            yield "sys/fs/cgroup", "memory.max", PurePosixPath(group)
        elif "memory" in controllers.split(","):
            yield "sys/fs/cgroup/memory", "memory.limit_in_bytes", PurePosixPath(group)


def _text(path: Path) -> str:
    try:
        return path.read_text()
    except OSError:
        return ""
