"""Solvers for tests: the real one, begun, held up or killed at a known moment.

Each leaves a file named ``begun-<process>-<number>`` in ``ZBPLAN_TEST_FOLDER`` when it begins.
"""

from __future__ import annotations

import itertools
import os
import signal
import time
from dataclasses import replace
from pathlib import Path
from typing import Any

from solver import Options, solve
from zbplan.errors import MethodError
from zbplan.plan import Plan
from zbplan.problem import Problem

_numbers = itertools.count()


def folder() -> Path:
    return Path(os.environ["ZBPLAN_TEST_FOLDER"])


def begun(where: Path) -> list[int]:
    """Return the process of every solve that began."""
    return [int(path.name.split("-")[1]) for path in where.glob("begun-*")]


def mark_begun() -> None:
    (folder() / f"begun-{os.getpid()}-{next(_numbers)}").touch()


def wait_for(name: str) -> None:
    while not (folder() / name).exists():
        time.sleep(0.02)


def counted(problem: Problem, **options: Any) -> Plan:
    """Solve."""
    mark_begun()
    return solve(problem, **options)


def held(problem: Problem, **options: Any) -> Plan:
    """Report what is found at once, and return when a file named ``release`` is there."""
    plan = counted(problem, **options)
    wait_for("release")
    return plan


def improving(problem: Problem, **options: Any) -> Plan:
    """After ``release``, claim better bounds for the first plan and another as good; return after ``finish``."""
    first = solve(problem, options=Options(parts=()))
    other = with_microbatches_renamed(problem, first)
    mark_begun()
    wait_for("release")
    for plan, more_ms in ((first, 0.25), (other, 0.5)):
        bound_ms = first.bound.iteration_ms + more_ms
        options["on_incumbent"](plan.with_bound(bound_ms, "a test"), bound_ms)
    wait_for("finish")
    return other.with_bound(first.bound.iteration_ms + 0.75, "a test")


def with_microbatches_renamed(problem: Problem, plan: Plan) -> Plan:
    """Return the same schedule with the last microbatch first; microbatches are alike here."""
    orders = plan.orders()
    microbatch = orders.ops % problem.microbatches
    ops = orders.ops - microbatch + problem.microbatches - 1 - microbatch
    return Plan.build(problem, plan.placement, replace(orders, ops=ops), method="renamed")


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
