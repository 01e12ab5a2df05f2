from __future__ import annotations

import pytest

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
