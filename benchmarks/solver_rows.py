"""The problems on which plans and bounds are measured, and what they must reach there."""

from __future__ import annotations

import json
import random
from collections.abc import Iterator
from dataclasses import dataclass
from itertools import product
from pathlib import Path
from typing import Any

from zbplan.plan import PROVEN_GAP
from zbplan.problem import Problem

REFERENCE = Path(__file__).parent.parent / "tests" / "reference"

OBJECTIVES = {"span": "post_validated", "makespan": "synchronous"}
"""What is minimised, by what the published figures call it."""

TIMES = ("t_f_ms", "t_b_ms", "t_w_ms")
MEASURED = (*TIMES, "t_comm_ms", "m_b_bytes", "m_w_bytes")


@dataclass(frozen=True)
class Target:
    """The largest gap that may be left after so many seconds."""

    gap: float
    within_s: float


@dataclass(frozen=True)
class Row:
    """One problem.

    Attributes
    ----------
    group
        Rows with the same targets, and with a heading in the table.
    peer_ms
        What the published schedulers reach; None where they were not run or fail.
    """

    name: str
    group: str
    problem: Problem
    targets: tuple[Target, ...]
    peer_ms: float | None = None

    @property
    def limit_s(self) -> float:
        """Seconds that a solve of this row has."""
        return max(target.within_s for target in self.targets)


def rows() -> list[Row]:
    """Return all rows, with names of their own."""
    return [*_table_5(), *_sweep(), *_scarce(), *_unequal(), *_v(), *_edge(), *_small(), *_at_once()]


def _published(prefix: str) -> Iterator[dict[str, Any]]:
    for row in json.loads((REFERENCE / "published_schedules.json").read_text())["rows"]:
        if row["id"].startswith(prefix):
            yield row


def _paper(model: str) -> dict[str, Any]:
    """Return the first of a model's rows in Table 5."""
    rows = json.loads((REFERENCE / "zero_bubble_paper.json").read_text())["rows"]
    return next(row for row in rows if row["model"] == model)


def _asked(row: dict[str, Any], objective: str, **changes: Any) -> Problem:
    return Problem.parse({**row["problem"], "optimizer": OBJECTIVES[objective], **changes})


def _linear(model: str, objective: str, limit: str, **changes: Any) -> Problem:
    row = _paper(model)
    profile = {"stages": row["devices"], **{name: row[name] for name in MEASURED}, **changes}
    asked = {"devices": row["devices"], "microbatches": row["microbatches"], "placement": "linear"}
    return Problem.parse({"profile": profile, **asked, "memory_limit": limit, "optimizer": OBJECTIVES[objective]})


def _table_5() -> Iterator[Row]:
    for row, objective in product(_published("T5:"), OBJECTIVES):
        name = f"{row['id'].removeprefix('T5:').replace('table1:', '')} {objective}"
        peer = row["published"][f"{objective}_ms"]
        yield Row(name, "Table 5", _asked(row, objective), (Target(PROVEN_GAP, 3),), peer)


SWEEP = {
    "1.5B": (Target(3e-3, 10), Target(PROVEN_GAP, 20)),
    "6.2B": (Target(3e-3, 10), Target(PROVEN_GAP, 20)),
    "14.6B": (Target(3e-3, 30),),
    "28.3B": (Target(1e-2, 30),),
}


def _sweep() -> Iterator[Row]:
    known = {row["id"]: row["published"] for row in _published("sweep:")}
    for model, limit, objective in product(SWEEP, ("1.125", "1.25", "1.5"), OBJECTIVES):
        shape = "{model}:p{devices}:m{microbatches}".format(**_paper(model))
        peer = known.get(f"sweep:{shape}:{limit}p", {}).get(f"{objective}_ms")
        problem = _linear(model, objective, f"{limit}x")
        yield Row(f"{shape}:{limit}p {objective}", "limits between 1p and 2p", problem, SWEEP[model], peer)


SCARCE = {"0.9": 0.015, "0.75": 0.04, "0.5": 0.06}


def _scarce() -> Iterator[Row]:
    for model, (limit, gap), objective in product(("1.5B", "6.2B"), SCARCE.items(), OBJECTIVES):
        problem = _linear(model, objective, f"{limit}x")
        yield Row(f"{model}:p8:m24:{limit}p {objective}", "limits below 1p", problem, (Target(gap, 20),))


def _unequal() -> Iterator[Row]:
    for seed, limit, objective in product(range(3), ("1", "1.5", "2"), OBJECTIVES):
        draw, measured = random.Random(seed), _paper("1.5B")
        times = {name: [round(measured[name] * draw.uniform(0.7, 1.3), 3) for _ in range(8)] for name in TIMES}
        problem = _linear("1.5B", objective, f"{limit}x", **times)
        yield Row(f"±30 % seed {seed} {limit}p {objective}", "unequal stages", problem, (Target(0.015, 20),))


def _v() -> Iterator[Row]:
    for row in _published("T8:"):
        name, peer = row["id"].removeprefix("T8:"), row["published"]["span_ms"]
        gap = 0.08 if name.endswith("V-Min") else PROVEN_GAP if name == "6.2B:p16:m48:ZB-V_1p" else 5e-3
        yield Row(f"{name} span", "V placement", _asked(row, "span"), (Target(gap, 30),), peer)


def _edge() -> Iterator[Row]:
    for row, objective in product(_published("edge:"), OBJECTIVES):
        name, peer = f"{row['id'].removeprefix('edge:')} {objective}", row["published"][f"{objective}_ms"]
        yield Row(name, "edge", _asked(row, objective), (Target(0.02, 20),), peer)


def _small() -> Iterator[Row]:
    for microbatches, limit in product((8, 10, 12), LIMITS):
        yield Row(
            f"p4:m{microbatches}:{limit}p CP-SAT",
            "four devices, one solver alone",
            _four(microbatches, limit, "cp_sat"),
            (Target(PROVEN_GAP, 5),),
        )
    for limit in LIMITS:
        yield Row(
            f"p4:m8:{limit}p ILP", "four devices, one solver alone", _four(8, limit, "ilp"), (Target(PROVEN_GAP, 60),)
        )


LIMITS = ("0.5", "0.75", "1", "1.25", "1.5")


def _four(microbatches: int, limit: str, method: str) -> Problem:
    row = _paper("1.5B")
    profile = {"stages": 4, **{name: row[name] for name in MEASURED}}
    asked = {"devices": 4, "microbatches": microbatches, "placement": "linear", "memory_limit": f"{limit}x"}
    return Problem.parse({"profile": profile, **asked, "optimizer": "post_validated", "method": method})


def _at_once() -> Iterator[Row]:
    """Yield the largest problems, of which a tenth of a second asks no more than a legal plan and a bound."""
    for row in _published("T5:28.3B:p32:m256"):
        name = f"{row['id'].removeprefix('T5:').replace('table1:', '')} at once"
        yield Row(name, "a tenth of a second", _asked(row, "span"), (Target(1, 0.1),))
