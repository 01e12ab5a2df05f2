from __future__ import annotations

import json
from dataclasses import dataclass

import pytest

from tests.runtime_client.plans import zb_h1
from tests.runtime_client.processes import Finished, torchrun
from tests.runtime_client.serving import answer, serving
from zbplan.plan import Plan

RANKS = 2


@dataclass(frozen=True)
class StartUp:
    """All scenarios, run on all ranks in one start of the processes."""

    run: Finished
    asked: list[str]
    outcomes: list[dict[str, tuple[str, str]]]

    def of(self, scenario: str) -> list[tuple[str, str]]:
        """Return what a scenario came to on each rank."""
        assert self.run.returncode == 0, self.run.output
        return [tuple(outcomes[scenario]) for outcomes in self.outcomes]


@pytest.fixture(scope="module")
def start_up(tmp_path_factory: pytest.TempPathFactory) -> StartUp:
    folder = tmp_path_factory.mktemp("ranks")
    with serving(answer("done", zb_h1(2, 4))) as service:
        run = torchrun(RANKS, "tests.runtime_client.fetch_worker", service.url, str(folder))
    texts = [path.read_text() for path in sorted(folder.glob("*.json"))]
    return StartUp(run, [method for method, _, _ in service.asked], [json.loads(text) for text in texts])


@pytest.mark.parametrize("scenario", ["fetch", "fetch a problem", "broadcast", "broadcast bytes"])
def test_every_rank_has_the_plan_of_rank_0(start_up: StartUp, scenario: str) -> None:
    for result, text in start_up.of(scenario):
        assert result == "returned"
        assert Plan.parse_json(text) == zb_h1(2, 4)


def test_only_rank_0_asks_the_service(start_up: StartUp) -> None:
    start_up.of("fetch")
    assert start_up.asked == ["GET", "POST"]


@pytest.mark.parametrize(
    ("scenario", "error", "message"),
    [
        ("no service", "FetchError", "rank 0 got no plan: GET http://127.0.0.1:9/v1/plans/"),
        ("no plan on rank 0", "FetchError", "rank 0 got no plan: found no plan on rank 0; needed one: pass it there"),
        ("no plan but junk", "FetchError", "rank 0 got no plan: $: found "),
        ("other content", "PlanDigestError", "found another plan on ranks [1] ("),
        ("a bit turned over on the way to rank 1", "PlanDigestError", "found another plan on ranks [1] ("),
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
def test_what_goes_wrong_on_one_rank_is_the_same_named_error_on_all(
    start_up: StartUp, scenario: str, error: str, message: str
) -> None:
    outcomes = start_up.of(scenario)
    assert [name for name, _ in outcomes] == [error] * RANKS
    assert [text[: len(message)] for _, text in outcomes] == [message] * RANKS


def test_ranks_that_agree_go_on(start_up: StartUp) -> None:
    assert start_up.of("same content") == [("returned", None)] * RANKS
