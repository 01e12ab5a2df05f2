"""How good are the plans, and how near are the bounds? Every promised row: plan, bound, gap, seconds, peer.

``python -m benchmarks.solver`` solves all rows, prints a claim per target and fails if one does not hold; ``--rows
PATTERN`` solves those whose group and name match, ``--write-docs`` only renders what is known. Results are kept in
``benchmarks/results/solver.json``, row by row, and make the table of ``docs/optimality.md``. Needs a machine that does
nothing else.
"""

from __future__ import annotations

import argparse
import json
import os
import re
import sys
import time
from collections.abc import Iterator
from importlib.metadata import version
from pathlib import Path
from typing import Any

from benchmarks.claim import Claim, exit_status
from benchmarks.solver_rows import Row, rows
from solver import solve
from zbplan.plan import PROVEN_GAP, Plan
from zbplan.validate import check

ROOT = Path(__file__).parent.parent
RESULTS = ROOT / "benchmarks" / "results" / "solver.json"
DOCUMENT = ROOT / "docs" / "optimality.md"
BEGIN, END = "<!-- table: python -m benchmarks.solver --write-docs -->\n", "<!-- end of table -->"

SLACK_S = 0.5
"""Seconds by which a solve may pass its limit."""

Result = dict[str, Any]


def measure(row: Row) -> Result:
    """Solve a row and note the gap at each of its targets' times."""
    heard: list[tuple[float, float]] = []
    began = time.monotonic()

    def hear(plan: Plan, bound_ms: float) -> None:
        heard.append((time.monotonic() - began, plan.bound.gap))

    problem = row.problem.model_copy(update={"time_limit_s": row.limit_s})
    plan = check(solve(problem, on_incumbent=hear))
    took_s = time.monotonic() - began
    heard.append((took_s, plan.bound.gap))
    return {
        "plan_ms": plan.metrics.iteration_ms,
        "bound_ms": plan.bound.iteration_ms,
        "gap": plan.bound.gap,
        "took_s": round(took_s, 2),
        "gap_at": {f"{target.within_s:g}": _gap_at(heard, target.within_s) for target in row.targets},
        "method": plan.provenance.method,
        "reason": plan.bound.reason,
        "parts": {run.part: run.ran_s for run in plan.provenance.parts},
    }


def _gap_at(heard: list[tuple[float, float]], within_s: float) -> float:
    return [gap for at_s, gap in heard if at_s <= within_s or gap == heard[0][1]][-1]


def claims(row: Row, result: Result) -> list[Claim]:
    """Hold a result against what its row must reach."""
    made = [
        Claim(
            f"{row.group}, {row.name}: gap in {target.within_s:g} s",
            result["gap_at"][f"{target.within_s:g}"],
            target.gap,
        )
        for target in row.targets
    ]
    made.append(Claim(f"{row.group}, {row.name}: seconds", result["took_s"], row.limit_s + SLACK_S))
    if row.peer_ms is not None:
        made.append(
            Claim(f"{row.group}, {row.name}: iteration / published", result["plan_ms"] / row.peer_ms, 1.0000005)
        )
    return made


def average(known: dict[str, Result]) -> list[Claim]:
    """Hold the mean gap of unequal stages against what it must be."""
    gaps = [known[row.name]["gap"] for row in rows() if row.group == "unequal stages" and row.name in known]
    return [Claim("unequal stages: mean gap in 20 s", sum(gaps) / len(gaps), 0.005)] if gaps else []


def render(known: dict[str, Result]) -> str:
    """Return the table of all known results."""
    lines, group = [], ""
    for row in rows():
        if row.name not in known:
            continue
        if row.group != group:
            group = row.group
            lines += ["", f"**{group[0].upper()}{group[1:]}**", "", HEAD, RULE]
        lines.append(_line(row, known[row.name]))
    return "\n".join(lines).strip() + "\n"


HEAD = "| row | plan, ms | bound, ms | gap | seconds | peer, ms | must be | |"
RULE = "| --- | --- | --- | --- | --- | --- | --- | --- |"


def _line(row: Row, result: Result) -> str:
    gap = "proven" if result["gap"] <= PROVEN_GAP else f"{result['gap']:.2%}"
    targets = ", ".join(f"{_wanted(target.gap)} in {target.within_s:g} s" for target in row.targets)
    held = all(claim.holds for claim in claims(row, result))
    peer = "" if row.peer_ms is None else f"{row.peer_ms:.3f}"
    figures = f"{result['plan_ms']:.3f} | {result['bound_ms']:.3f} | {gap} | {result['took_s']:.1f}"
    return f"| {row.name} | {figures} | {peer} | {targets} | {'' if held else 'missed'} |"


def _wanted(gap: float) -> str:
    return "proven" if gap <= PROVEN_GAP else "legal" if gap >= 1 else f"≤ {gap:.1%}"


def write_docs(known: dict[str, Result]) -> None:
    """Put the table where the document has it."""
    before, rest = DOCUMENT.read_text().split(BEGIN)
    DOCUMENT.write_text(before + BEGIN + "\n" + render(known) + "\n" + rest[rest.index(END) :])


def keep(known: dict[str, Result]) -> None:
    """Write down all known results."""
    text = json.dumps({"environment": environment(), "rows": known}, indent=1, ensure_ascii=False)
    RESULTS.write_text(text + "\n")


def environment() -> dict[str, Any]:
    """Return what the figures depend on beside the code."""
    packages = {name: version(name) for name in ("ortools", "highspy", "pulp", "numba", "numpy")}
    return {"cores": os.cpu_count(), "python": sys.version.split()[0], **packages}


def main() -> int:
    """Solve, keep, render; return 1 if a claim does not hold."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--rows", default="", help="regular expression on group and name")
    parser.add_argument("--write-docs", action="store_true", help="solve nothing, render what is known")
    arguments = parser.parse_args()
    known: dict[str, Result] = json.loads(RESULTS.read_text())["rows"] if RESULTS.exists() else {}
    if arguments.write_docs:
        write_docs(known)
        return 0
    solve(rows()[0].problem.model_copy(update={"time_limit_s": 1}))  # compiles what is compiled
    return exit_status(_measured(arguments.rows, known))


def _measured(pattern: str, known: dict[str, Result]) -> Iterator[Claim]:
    """Solve rows, keep what is found after each, and yield what they and all known ones are held against."""
    for row in rows():
        if re.search(pattern, f"{row.group} {row.name}"):
            known[row.name] = measure(row)
            keep(known)
            yield from claims(row, known[row.name])
    yield from average(known)


if __name__ == "__main__":
    sys.exit(main())
