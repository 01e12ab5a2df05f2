from __future__ import annotations

import pytest

from tests.runtime_client.conftest import RANKS, StartUp
from tests.runtime_client.plans import zb_h1
from zbplan.plan import Plan


@pytest.mark.parametrize(
    "scenario", ["fetch", "fetch a problem", "no service, but a copy on disk", "broadcast", "broadcast bytes"]
)
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
        ("a bit turned over on the way to rank 1", "PlanDigestError", "found another plan on ranks [1] ("),
    ],
)
def test_what_goes_wrong_on_one_rank_is_the_same_named_error_on_all(
    start_up: StartUp, scenario: str, error: str, message: str
) -> None:
    outcomes = start_up.of(scenario)
    assert [name for name, _ in outcomes] == [error] * RANKS
    assert [text[: len(message)] for _, text in outcomes] == [message] * RANKS
