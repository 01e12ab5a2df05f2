"""Solvers for tests: the real one, begun, held up or killed at a known moment.

Each leaves a file named ``begun-<process>-<number>`` in ``ZBPLAN_TEST_FOLDER`` when it begins.
"""

from __future__ import annotations

import itertools
import os
import signal
import time
from pathlib import Path
from typing import Any

from solver import solve
from zbplan.errors import MethodError
from zbplan.plan import Plan
from zbplan.problem import Problem

_numbers = itertools.count()


def folder() -> Path:
    return Path(os.environ["ZBPLAN_TEST_FOLDER"])


def begun(where: Path) -> list[int]:
    """Return the process of every solve that began."""
    return [int(path.name.split("-")[1]) for path in where.glob("begun-*")]


def counted(problem: Problem, **options: Any) -> Plan:
    """Solve."""
    (folder() / f"begun-{os.getpid()}-{next(_numbers)}").touch()
    return solve(problem, **options)


def held(problem: Problem, **options: Any) -> Plan:
    """Report what is found at once, and return when a file named ``release`` is there."""
    plan = counted(problem, **options)
    while not (folder() / "release").exists():
        time.sleep(0.02)
    return plan


def killed(problem: Problem, **options: Any) -> Plan:
    """Die, as if the kernel had run out of memory."""
    counted(problem, **options)
    os.kill(os.getpid(), signal.SIGKILL)
    raise AssertionError("unreachable")


def killed_once(problem: Problem, **options: Any) -> Plan:
    """Die the first time."""
    if not begun(folder()):
        return killed(problem, **options)
    return counted(problem, **options)


def wrong(problem: Problem, **options: Any) -> Plan:
    """Return a plan that claims more than it does."""
    plan = solve(problem, **options)
    return plan.model_copy(update={"metrics": plan.metrics.model_copy(update={"iteration_ms": 1.0})})


def refusing(problem: Problem, **options: Any) -> Plan:
    """Find no plan."""
    raise MethodError("cp_sat", "found nothing", ["zb_h1"])


def broken(problem: Problem, **options: Any) -> Plan:
    """Fail as no solver should."""
    raise ZeroDivisionError("a mistake")
