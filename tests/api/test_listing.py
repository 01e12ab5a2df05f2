"""Lists of problems, on databases of both kinds and over HTTP."""

from __future__ import annotations

from typing import Any

import pytest

from api.database import Database
from api.listing import Listing, Page, Wanted
from api.store import Store
from heuristic import construct
from tests.api.servers import Server, problem
from tests.api.stored import asked
from tests.api.test_routes import assert_problem_details


def store_some(store: Store, count: int = 1, **changes: Any) -> list[str]:
    """Return the keys of new problems, the last stored first."""
    problems = [asked(**changes) for _ in range(count)]
    for new in problems:
        store.add(new, construct(new))
    return [new.key for new in reversed(problems)]


def listed(database: Database, **wanted: Any) -> list[str]:
    return [item.key for item in Listing(database).page(Wanted(**wanted)).plans]


def named(name: str) -> dict[str, Any]:
    return {**problem()["profile"], "name": name}


@pytest.mark.parametrize(
    ("changes", "wanted"),
    [
        ({"method": "zb_h1"}, {"method": "zb_h1"}),
        ({"optimizer": "post_validated"}, {"optimizer": "post_validated"}),
        ({"placement": "linear"}, {"placement": "linear"}),
        ({"placement": [[3], [2], [1], [0]]}, {"placement": "custom"}),
        ({"devices": 2, "memory_limit": None}, {"devices": 2}),
        ({"profile": named("gpt \u2603 \0")}, {"profile": "gpt \u2603 \0"}),
    ],
)
def test_each_filter_chooses(store: Store, database: Database, changes: dict[str, Any], wanted: dict[str, Any]) -> None:
    others, chosen = store_some(store, 2), store_some(store, 1, **changes)
    assert listed(database, **wanted) == chosen
    assert listed(database) == chosen + others
    ((name, value),) = wanted.items()
    (found,) = Listing(database).page(Wanted(**wanted)).plans
    assert getattr(found, name) == value
    assert listed(database, **wanted, status="done") == []


def test_times_are_from_one_on_and_before_another(store: Store, database: Database) -> None:
    last, middle, first = store_some(store, 3)
    since = Listing(database).page(Wanted()).plans[1].submitted_at
    assert listed(database, since=since) == [last, middle]
    assert listed(database, until=since) == [first]
    assert listed(database, since=since.replace("Z", "+00:00"), until=since) == []


def test_cursor_leads_on_through_what_is_chosen_while_more_is_added(store: Store, database: Database) -> None:
    chosen: list[str] = []
    for _ in range(5):
        store_some(store)
        chosen = store_some(store, method="zb_h1") + chosen
    found, cursor = [], None
    for _ in range(3):
        page = Listing(database).page(Wanted(method="zb_h1", limit=2, cursor=cursor))
        found += [item.key for item in page.plans]
        cursor = page.next
        store_some(store, method="zb_h1")
    assert found == chosen
    assert cursor is None


def test_filters_over_http(server: Server) -> None:
    asked = problem(method="zb_h1", profile=named("listed & found"))
    key = server.post(asked, wait_s=30).json()["key"]
    with server.client() as client:
        wanted = {"profile": "listed & found", "method": "zb_h1", "devices": 4, "since": "2026-01-01T00:00:00+01:00"}
        answer = client.get("/v1/plans", params=wanted)
        assert [item.key for item in Page.parse_json(answer.content).plans] == [key]
        assert client.get("/v1/plans", params={**wanted, "until": "2026-01-01T00:00:00Z"}).json()["plans"] == []


@pytest.mark.parametrize(
    ("query", "path"),
    [
        ("method=best", "query.method"),
        ("devices=0", "query.devices"),
        ("placement=round", "query.placement"),
        ("since=yesterday", "query.since"),
        ("since=2026-01-01T00:00:00", "query.since"),
        ("until=0001-01-01T00:00:00%2B23:59", "query.until"),
        ("cursor=x", "query.cursor"),
        ("cursor=9999_", "query.cursor"),
        ("cursor=2026-01-01T00:00:00.000000Z_" + "g" * 64, "query.cursor"),
        ("model=gpt", "query.model"),
    ],
)
def test_filter_that_is_wrong_is_told(server: Server, query: str, path: str) -> None:
    answer = server.get(f"/v1/plans?{query}")
    assert_problem_details(answer, 422, "invalid_input")
    assert [item["path"] for item in answer.json()["errors"]] == [path]


def test_examples_of_filters_can_be_sent_as_they_are(server: Server) -> None:
    described = server.get("/openapi.json").json()["paths"]["/v1/plans"]["get"]["parameters"]
    examples = {
        item["name"]: option["examples"][0]
        for item in described
        for option in item["schema"].get("anyOf", [item["schema"]])
        if "examples" in option
    } | {item["name"]: item["schema"]["examples"][0] for item in described if "examples" in item["schema"]}
    assert {"status", "method", "optimizer", "placement", "devices", "profile", "since", "until"} <= set(examples)
    with server.client() as client:
        assert client.get("/v1/plans", params=examples).status_code == 200
