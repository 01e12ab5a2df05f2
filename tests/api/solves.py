"""A solver for tests: the real one without its search, held up or killed at a known moment as the profile's name says.

Each solve leaves a file named ``begun-<key>-<process>-<number>`` in ``ZBPLAN_TEST_FOLDER`` when it begins, and waits
for files that the test puts there.
"""

from __future__ import annotations

import itertools
import os
import signal
import time
from dataclasses import replace
from pathlib import Path
from typing import Any

from sqlalchemy.exc import OperationalError

from api.claims import Claims
from solver import Options, solve
from zbplan.errors import MethodError
from zbplan.plan import Plan
from zbplan.problem import Problem

GREED_BYTES = 1 << 31

_numbers = itertools.count()


def scripted(problem: Problem, **options: Any) -> Plan:
    """Do what the name of the profile says."""
    before = len(begun(_folder(), problem.key))
    (_folder() / f"begun-{problem.key}-{os.getpid()}-{next(_numbers)}").touch()
    match problem.profile.name:
        case "held":
            return held(problem, **options)
        case "improving":
            return improving(problem, **options)
        case "cut off":
            return cut_off(problem, **options)
        case "killed":
            return killed()
        case "killed once":
            return quick(problem, **options) if before else killed()
        case "wrong":
            return wrong(problem, **options)
        case "refusing":
            raise MethodError("cp_sat", "found nothing", ["zb_h1"])
        case "greedy":
            return greedy(problem, **options)
        case "broken":
            raise ZeroDivisionError("a mistake")
        case _:
            return quick(problem, **options)


def quick(problem: Problem, **options: Any) -> Plan:
    """Solve with the constructive schedules and analytic bounds only."""
    chosen = replace(options.pop("options", Options()), parts=())
    return solve(problem, options=chosen, **options)


def begun(folder: Path, key: str) -> list[int]:
    """Return the process of every solve of a problem that began."""
    return [int(path.name.split("-")[2]) for path in folder.glob(f"begun-{key}-*")]


def let(folder: Path, key: str, what: str) -> None:
    """Let a solve of a problem go on: ``release`` or ``finish``."""
    (folder / f"{what}-{key}").touch()


def held(problem: Problem, **options: Any) -> Plan:
    """Report what is found at once, and return after ``release``."""
    plan = quick(problem, **options)
    _wait_for(problem, "release")
    return plan


def improving(problem: Problem, **options: Any) -> Plan:
    """After ``release``, claim better bounds for the first plan and another as good; return after ``finish``."""
    first = quick(problem)
    other = _with_microbatches_renamed(problem, first)
    _wait_for(problem, "release")
    for plan, more_ms in ((first, 0.25), (other, 0.5)):
        bound_ms = first.bound.iteration_ms + more_ms
        options["on_incumbent"](plan.with_bound(bound_ms, "a test"), bound_ms)
    _wait_for(problem, "finish")
    return other.with_bound(first.bound.iteration_ms + 0.75, "a test")


def cut_off(problem: Problem, **options: Any) -> Plan:
    """Claim a better bound when this process alone cannot reach the store any longer, and return after ``release``."""
    Claims.improve = unreachable  # type: ignore[method-assign]
    plan = quick(problem)
    bound_ms = plan.bound.iteration_ms + 0.25
    options["on_incumbent"](plan.with_bound(bound_ms, "a test"), bound_ms)
    _wait_for(problem, "release")
    return plan


def unreachable(*_: object) -> None:
    raise OperationalError("UPDATE problems", None, ConnectionError("cut off"))


def killed() -> Plan:
    """Die, as if the kernel had run out of memory."""
    os.kill(os.getpid(), signal.SIGKILL)
    raise AssertionError("unreachable")


def greedy(problem: Problem, **options: Any) -> Plan:
    """Want more memory than a test allows."""
    assert len(bytearray(GREED_BYTES)) == GREED_BYTES
    return quick(problem, **options)


def wrong(problem: Problem, **options: Any) -> Plan:
    """Return a plan that claims more than it does."""
    plan = quick(problem, **options)
    return plan.model_copy(update={"metrics": plan.metrics.model_copy(update={"iteration_ms": 1.0})})


def _with_microbatches_renamed(problem: Problem, plan: Plan) -> Plan:
    """Return the same schedule with the last microbatch first; microbatches are alike here."""
    orders = plan.orders()
    microbatch = orders.ops % problem.microbatches
    ops = orders.ops - microbatch + problem.microbatches - 1 - microbatch
    return Plan.build(problem, plan.placement, replace(orders, ops=ops), method="renamed")


def _folder() -> Path:
    return Path(os.environ["ZBPLAN_TEST_FOLDER"])


def _wait_for(problem: Problem, what: str) -> None:
    while not (_folder() / f"{what}-{problem.key}").exists():
        time.sleep(0.02)
