"""What does it gain not to wait at the optimizer step? Post-validated against synchronous, measured against predicted.

``python -m benchmarks.post_validated`` trains four ranks whose ops are sleeps of 50 to 75 ms, prints a row per claim
and fails if one does not hold. Transfers, optimizer steps and validation are real. Needs a machine that does nothing
else.
"""

from __future__ import annotations

import json
import sys
import tempfile
from pathlib import Path
from typing import Any

from benchmarks.claim import Claim, exit_status
from benchmarks.post_validated_worker import RANKS, WAYS
from benchmarks.ranks import run_ranks


def run() -> list[dict[str, Any]]:
    """Return what each rank found."""
    with tempfile.TemporaryDirectory() as folder:
        run_ranks(RANKS, "benchmarks.post_validated_worker", folder)
        return [json.loads(path.read_text()) for path in sorted(Path(folder).glob("*.json"))]


def iterations_ms(ranks: list[dict[str, Any]], way: str) -> list[float]:
    """Return the iteration of the slowest rank, by round."""
    rounds = zip(*(rank["rounds_ms"] for rank in ranks), strict=True)
    return [max(rank[way] for rank in own) for own in rounds]


def claims(ranks: list[dict[str, Any]]) -> list[Claim]:
    """Hold what was measured against what the plans predict."""
    planned_ms, memory = ranks[0]["plan_ms"], ranks[0]["memory"]
    by_round = {way: iterations_ms(ranks, way) for way in WAYS}
    measured_ms = {way: min(rounds) for way, rounds in by_round.items()}  # what disturbs only ever adds
    print("     planned, ms:", {name: round(planned, 1) for name, planned in planned_ms.items()})
    for way, rounds in by_round.items():
        print(f"     measured, ms by round: {way} {[round(measured, 1) for measured in rounds]}")
    print("     kept and passing, of weights and moments:", {name: round(share, 4) for name, share in memory.items()})
    post_ms, span_ms = measured_ms["post-validated"], planned_ms["post_validated"]
    predicted = planned_ms["synchronous"] / span_ms
    return [
        Claim("post-validated iteration / the plan's span", post_ms / span_ms, most=1.03, least=0.97),
        Claim(
            "synchronous / post-validated",
            measured_ms["synchronous"] / post_ms,
            most=1.03 * predicted,
            least=0.97 * predicted,
        ),
        Claim("post-validated / not validated by anybody", post_ms / measured_ms["not validated"], most=1.02),
        Claim("kept of one copy of the weights and its moments", memory["torch.float32"], most=0.34),
        Claim("kept of float32 masters and moments", memory["torch.bfloat16"], most=0.0),
    ]


def main() -> int:
    """Print all claims; return 1 if one does not hold."""
    return exit_status(claims(run()))


if __name__ == "__main__":
    sys.exit(main())
