"""Problems from plain numbers, and the reference rows as problems."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

from zbplan.problem import Problem

REFERENCE = Path(__file__).parents[1] / "reference"


def linear(devices: int, microbatches: int, f: Any, b: Any, w: Any, *, comm: Any = 0, **changes: Any) -> Problem:
    """One stage per device, M_B = M_W = 1; further keywords are fields of the profile or of the problem."""
    asked = {name: changes.pop(name) for name in ("memory_limit", "optimizer", "method") if name in changes}
    profile = {"t_f_ms": f, "t_b_ms": b, "t_w_ms": w, "t_comm_ms": comm, "m_b_bytes": 1, "m_w_bytes": 1, **changes}
    fields = {"devices": devices, "microbatches": microbatches, "placement": "linear", **asked}
    return Problem.parse({"profile": {"stages": devices, **profile}, **fields})


def equal_times(placement: str, devices: int, stages: int, microbatches: int, **changes: Any) -> Problem:
    """T_F = T_B = T_W = 1 and M_B = M_W = 1 on every stage, transfers take no time."""
    ones = dict.fromkeys(("t_f_ms", "t_b_ms", "t_w_ms", "m_b_bytes", "m_w_bytes"), 1)
    fields = {"devices": devices, "microbatches": microbatches, "placement": placement, **changes}
    return Problem.parse({"profile": {"stages": stages, "t_comm_ms": 0, **ones}, **fields})


def paper_rows() -> list[dict[str, Any]]:
    """Rows of the paper's Table 5, each with the times of Table 9."""
    return _of_paper("rows")


def chunk_rows() -> list[dict[str, Any]]:
    """Rows of the paper's Table 8, each with the times of a chunk, which is half a stage."""
    return _of_paper("chunk_rows")


def _of_paper(name: str) -> list[dict[str, Any]]:
    rows: list[dict[str, Any]] = json.loads((REFERENCE / "zero_bubble_paper.json").read_text())[name]
    return rows


def paper_problem(row: dict[str, Any], **changes: Any) -> Problem:
    fields = ("t_f_ms", "t_b_ms", "t_w_ms", "t_comm_ms", "m_b_bytes", "m_w_bytes")
    profile = {"stages": row["devices"], **{field: row[field] for field in fields}}
    asked = {"devices": row["devices"], "microbatches": row["microbatches"], "placement": "linear", **changes}
    return Problem.parse({"profile": profile, **asked})


def published_rows() -> list[dict[str, Any]]:
    """Problems with what the published schedulers reach on them."""
    rows: list[dict[str, Any]] = json.loads((REFERENCE / "published_schedules.json").read_text())["rows"]
    return rows


def chunk_problem(row: dict[str, Any], **changes: Any) -> Problem:
    """A row of Table 8 by the longest span: on V one chunk per stage, else two."""
    chunks = 1 if changes.get("placement") == "v" else 2
    fields = ("t_f_ms", "t_b_ms", "t_w_ms", "m_b_bytes", "m_w_bytes")
    profile = {"stages": 2 * row["devices"] // chunks, **{field: chunks * row[field] for field in fields}}
    asked = {"devices": row["devices"], "microbatches": row["microbatches"], "placement": "linear", **changes}
    return Problem.parse(
        {"profile": {**profile, "t_comm_ms": row["t_comm_ms"]}, "optimizer": "post_validated", **asked}
    )
