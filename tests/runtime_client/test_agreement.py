from __future__ import annotations

import json

import pytest

from tests.processes import together
from tests.runtime_client.conftest import RANKS, StartUp


@pytest.mark.parametrize(
    ("scenario", "error", "message"),
    [
        ("other content", "PlanDigestError", "found another plan on ranks [1] ("),
        ("a finding on rank 1", "JobMismatchError", "the plan does not fit the job: rank 1: found é; found ï"),
        ("a finding too long to send", "JobMismatchError", "the plan does not fit the job: rank 0: éé"),
        ("two valid plans", "PlanDigestError", "found another plan on ranks [1] ("),
        (
            "two numbers of microbatches",
            "JobMismatchError",
            "the plan does not fit the job: rank 1: found 5 microbatches; needed 4, or a plan for 5",
        ),
    ],
)
def test_what_is_wrong_on_one_rank_is_raised_on_all(start_up: StartUp, scenario: str, error: str, message: str) -> None:
    outcomes = start_up.of(scenario)
    assert [name for name, _ in outcomes] == [error] * RANKS
    assert [text[: len(message)] for _, text in outcomes] == [message] * RANKS


def test_ranks_that_agree_go_on(start_up: StartUp) -> None:
    assert start_up.of("same content") == [("returned", None)] * RANKS


def test_ranks_that_each_planned_for_themselves_hold_one_plan(start_up: StartUp) -> None:
    (first, *others) = start_up.of("one plan, found in different times")
    assert first[0] == "returned"
    assert others == [first] * (RANKS - 1)


@pytest.fixture(scope="module")
def found(tmp_path_factory: pytest.TempPathFactory) -> dict[str, str]:
    """What rank 0 ends with where rank 1 has left."""
    folder = tmp_path_factory.mktemp("leaving")
    worker = ["-m", "tests.runtime_client.leaving_worker"]
    runs = together([[*worker, str(rank), str(folder)] for rank in range(2)])
    assert [run.returncode for run in runs] == [0, 0], runs[0].output + runs[1].output
    kept: dict[str, str] = json.loads((folder / "found.json").read_text())
    return kept


@pytest.mark.parametrize(
    ("scenario", "doing"),
    [
        ("broadcast", "receiving the plan"),
        ("schedule", "agreeing with the others"),
        ("trace", "agreeing with the others"),
        ("optimizer", "connecting for the validation of optimizer steps"),
    ],
)
def test_a_rank_that_is_gone_ends_the_others_with_a_named_error(
    found: dict[str, str], scenario: str, doing: str
) -> None:
    assert found[scenario].startswith(f"RankGoneError: rank 0, {doing}: found RuntimeError: ")
    assert found[scenario].endswith("needed every rank of the group to take part: look for the rank that failed first")
