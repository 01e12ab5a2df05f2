"""The constructive plan where numba is not installed, as for a training job whose service is gone."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

from heuristic import construct
from tests.heuristic.partition.layered import layered
from zbplan.plan import Plan
from zbplan.problem import Problem
from zbplan.validate import validate

ROOT = Path(__file__).parents[3]

WITHOUT_NUMBA = """
import sys
sys.modules["numba"] = None
from heuristic import construct
from zbplan.problem import Problem
print(construct(Problem.parse_json(sys.stdin.read())).to_json())
"""
TIMES = {"t_f_ms": [0.5, *[7.4] * 14, 9], "t_b_ms": [0.5, *[7.3] * 14, 8.5], "t_w_ms": [1, *[4.9] * 14, 7.5]}


def open_layers() -> Problem:
    return layered(TIMES, devices=4, microbatches=8, comm=0.5, memory_limit="1.5x")


def constructed_without_numba(problem: Problem) -> Plan:
    """Return what a process makes of a problem in which numba cannot be imported."""
    command = [sys.executable, "-c", WITHOUT_NUMBA]
    # A limit that only a hang passes: with the effort of a compiled search these plans take minutes.
    done = subprocess.run(
        command, input=problem.to_json(), capture_output=True, text=True, timeout=60, cwd=ROOT, check=True
    )
    return Plan.parse_json(done.stdout)


def test_without_numba_open_layers_have_a_plan_after_a_small_effort_which_it_says() -> None:
    problem = open_layers()
    plan = constructed_without_numba(problem)
    assert validate(plan) == []
    assert plan.key == problem.key
    assert [run.outcome for run in plan.provenance.parts] == ["searched little: numba is not installed"]
    assert plan.metrics.iteration_ms <= 1.1 * construct(problem).metrics.iteration_ms


def test_without_numba_given_stages_have_such_a_plan_too() -> None:
    cut = open_layers().cut([0, 5, 9, 13], [[0], [1], [2], [3]])
    plan = constructed_without_numba(cut)
    assert validate(plan) == []
    assert plan.provenance.parts[0].outcome.startswith("searched little")


def test_where_numba_is_installed_nothing_is_said() -> None:
    assert construct(open_layers()).provenance.parts == []
