"""A part in a process of its own: whatever it does, the solve ends with a legal plan no worse than its start."""

from __future__ import annotations

import os
import sys
import threading
from pathlib import Path

import pytest

from solver import Options, solve
from solver.process import External
from tests.heuristic.problems import linear
from zbplan.plan import Plan
from zbplan.problem import Problem
from zbplan.validate import validate

START = "import json, sys, time; job = json.loads(sys.stdin.readline())\n"


def open_problem(time_limit_s: float = 30) -> Problem:
    """One whose start is far from optimal, and which CP-SAT solves at once."""
    problem = linear(3, 4, 3.1, 2.9, 1.7, comm=0.1, method="gpipe")
    return problem.model_copy(update={"time_limit_s": time_limit_s})


def answer(script: str, **limits: float) -> Plan:
    liar = External("liar", (sys.executable, "-c", START + script))
    return solve(open_problem(**limits), options=Options(parts=(liar,)))


@pytest.mark.parametrize(
    ("script", "outcome"),
    [
        ("print(json.dumps({'end': 'optimal'}))", "optimal"),
        ("print(json.dumps({'end': 'infeasible'}))", "infeasible"),
        ("print(json.dumps({'bound': 10**50, 'reason': 'objective 1e50', 'end': 'optimal'}))", "claimed a bound above"),
        ("print(json.dumps({'bound': 1e400}))", "ended without a word"),
        ("print('NaN of times'); print(json.dumps([1])); print(json.dumps({'orders': 7}))", "ended without a word"),
        ("print(json.dumps({'orders': [ops[::-1] for ops in job['orders']], 'end': 'optimal'}))", "optimal"),
        ("print(json.dumps({'orders': [ops[:-1] for ops in job['orders']], 'end': 'optimal'}))", "optimal"),
        ("print(json.dumps({'orders': [[10**9]] * 3, 'end': 'optimal'}))", "optimal"),
        ("raise SystemExit('no license')", "failed with status 1: no license"),
    ],
)
def test_a_lie_changes_nothing_and_is_named(script: str, outcome: str) -> None:
    honest = solve(open_problem(), options=Options(parts=()))
    plan = answer(script)
    assert (plan.plan_id, plan.bound) == (honest.plan_id, honest.bound)
    assert validate(plan) == []
    assert outcome in plan.provenance.parts[-1].outcome


def test_a_part_is_told_how_many_threads_it_may_use() -> None:
    part = External("part", (sys.executable, "-c", START + "print(json.dumps({'end': str(job['threads'])}))"))
    outcomes = [
        solve(open_problem(), options=Options(parts=(part,), threads=threads)).provenance.parts[-1].outcome
        for threads in (1, 5)
    ]
    assert outcomes == ["1", "5"]


def test_a_bound_that_a_better_plan_refutes_is_struck_out() -> None:
    honest = solve(open_problem(), options=Options(parts=()))
    start = honest.instance().clock.units(honest.metrics.iteration_ms)
    claim = External("liar", (sys.executable, "-c", f"{START}print(json.dumps({{'bound': {start}}}))"))
    assert solve(open_problem(), options=Options(parts=(claim,))).bound.gap == 0
    # What only a legal plan can refute stands until there is one.
    silent = External("cp_sat")
    plan = solve(open_problem(), options=Options(parts=(lambda search, lane: search.lanes[0].claims.clear(), silent)))
    assert plan.metrics.iteration_ms < honest.metrics.iteration_ms


def test_a_part_that_never_ends_is_killed_when_the_time_is_up(tmp_path: Path) -> None:
    told = tmp_path / "pid"
    script = f"import os, pathlib; pathlib.Path({str(told)!r}).write_text(str(os.getpid())); time.sleep(3600)"
    plan = answer(script, time_limit_s=3)
    assert plan.provenance.parts[-1].outcome == "stopped"
    with pytest.raises(ProcessLookupError):
        os.kill(int(told.read_text()), 0)


def test_a_part_that_ignores_signals_and_has_children_is_killed_with_them() -> None:
    script = (
        "import signal, subprocess; signal.signal(signal.SIGTERM, signal.SIG_IGN)\n"
        "child = subprocess.Popen([sys.executable, '-c', 'import time; time.sleep(3600)'])\n"
        "child.wait()"
    )
    # The children share the pipe: the solve would wait for it if they lived on.
    assert answer(script, time_limit_s=0.5).provenance.parts[-1].outcome == "stopped"


def test_cancelling_stops_a_running_part() -> None:
    stop = threading.Event()
    threading.Timer(0.5, stop.set).start()
    endless = External("endless", (sys.executable, "-c", START + "time.sleep(3600)"))
    plan = solve(open_problem(3600), options=Options(parts=(endless,)), cancel=stop)
    assert plan.provenance.parts[-1].outcome == "stopped"


def test_a_missing_solver_costs_its_part_only() -> None:
    missing = External("missing", ("/no/such/solver",))
    plan = solve(open_problem(), options=Options(parts=(missing, External("cp_sat"))))
    first, second = plan.provenance.parts
    assert first.outcome.startswith("could not start: ")
    assert (second.part, second.outcome) == ("cp_sat", "closed the gap")
    assert plan.bound.proven_optimal


@pytest.mark.parametrize(
    ("part", "breakage", "words"),
    [
        ("ilp_cbc", "import pulp.apis.coin_api as api; api.pulp_cbc_path = '/no/such/cbc'", "cbc"),
        ("ilp_highs", "sys.modules['highspy'] = None", "highs"),
        ("cp_sat", "sys.modules['ortools'] = None", "ortools"),
    ],
)
def test_a_solver_that_is_not_installed_costs_its_part_only(part: str, breakage: str, words: str) -> None:
    script = f"import sys; {breakage}; from solver.worker import main; main()"
    broken = External(part, (sys.executable, "-c", script))
    plan = solve(open_problem(), options=Options(parts=(broken, External("cp_sat"))))
    outcome = plan.provenance.parts[0].outcome
    assert outcome.startswith("failed: ")
    assert words in outcome.lower()
    assert plan.bound.proven_optimal


def test_a_start_that_cannot_run_costs_its_part_only() -> None:
    script = (
        "import io, json, sys; job = json.loads(sys.stdin.readline())\n"
        "job['orders'] = [ops[::-1] for ops in job['orders']]\n"
        "sys.stdin = io.StringIO(json.dumps(job))\n"
        "import solver.worker as worker; worker._die_with_parent = lambda: None; worker.main()"
    )
    plan = solve(open_problem(), options=Options(parts=(External("cp_sat", (sys.executable, "-c", script)),)))
    assert "the orders deadlock" in plan.provenance.parts[0].outcome
    assert validate(plan) == []


def test_better_orders_from_a_process_are_kept_with_their_start() -> None:
    heard: list[float] = []
    plan = solve(
        open_problem(),
        options=Options(parts=(External("cp_sat"),)),
        on_incumbent=lambda plan, bound: heard.append(plan.metrics.iteration_ms),
    )
    assert plan.provenance.method == "cp_sat"
    assert plan.provenance.warm_start not in (None, "cp_sat")
    assert heard == sorted(heard, reverse=True)
    assert heard[-1] == plan.metrics.iteration_ms < heard[0]
