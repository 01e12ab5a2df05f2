import pytest

from benchmarks.emulated_stages import ASKED, SPEEDS, TORCHS, Run, claims, problem_of, torchs_plan
from heuristic import construct
from zbplan.validate import check

SLOW = SPEEDS["35 to 75 ms"]


@pytest.mark.parametrize("name", TORCHS)
def test_torchs_own_schedules_become_legal_plans(name: str) -> None:
    plan = check(torchs_plan(name, SLOW))
    assert max(plan.metrics.peak_bytes) == plan.requires.stages  # 1p


@pytest.fixture(scope="module")
def every() -> dict[str, Run]:
    plans = {
        f"{name}, {length}": construct(problem_of(speed, *ASKED[name]))
        for length, speed in SPEEDS.items()
        for name in ASKED
    }
    plans |= {f"torch's {name}": torchs_plan(name, SLOW) for name in TORCHS}
    plans |= {f"best beside {name}": plans["ZB-H1, 35 to 75 ms"] for name in TORCHS}
    return {name: Run(plan) for name, plan in plans.items()}


def test_iterations_as_planned_hold_every_claim(every: dict[str, Run]) -> None:
    as_planned = {name: [run.plan.metrics.iteration_ms] * 3 for name, run in every.items()}
    made = list(claims(every, as_planned))
    assert len(made) == len(SPEEDS) * len(ASKED) + len(TORCHS)
    assert all(claim.holds for claim in made)


@pytest.mark.parametrize("slow", ["ZB-H1, 9 to 19 ms", "best beside 1F1B"])
def test_a_slow_run_fails_its_claim_alone(every: dict[str, Run], slow: str) -> None:
    found = {name: [run.plan.metrics.iteration_ms * (1.06 if name == slow else 1)] for name, run in every.items()}
    failed = [claim for claim in claims(every, found) if not claim.holds]
    assert len(failed) == 1
    assert slow.removeprefix("best beside ") in failed[0].text
