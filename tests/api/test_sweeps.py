"""Sweeps over HTTP, and which cells pay."""

from __future__ import annotations

import asyncio
import json
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import pytest
from sqlalchemy import text
from sqlalchemy.exc import OperationalError

from api import sweep_desk, sweeping
from api.clerks import CRASHED, Clerks
from api.database import Database
from api.refusal import Refusal
from api.settings import Settings
from api.store import Store
from api.sweeping import Sweeping
from api.sweeps import Cell, SweepResource, Sweeps, table
from tests.api.servers import Server, problem, running, wait_until
from tests.api.stored import added
from tests.api.test_routes import assert_problem_details
from zbplan.problem import Problem


def sweep(does: str = "", **axes: Any) -> dict[str, Any]:
    return {"problem": problem(does), **axes}


def cell(microbatches: int, iteration_ms: float | None, peak_bytes: float | None) -> Cell:
    costs = {"iteration_ms": iteration_ms, "peak_bytes": peak_bytes}
    return Cell(memory_limit=None, microbatches=microbatches, placement="linear", status="done", **costs)


@pytest.mark.parametrize(
    ("costs", "pays"),
    [
        ([(8, 10, 5), (8, 12, 4), (8, 12, 5), (8, 13, 4), (8, 14, 3)], [True, True, False, False, True]),
        ([(8, 10, 5), (8, 10, 5), (8, 10, 6)], [True, True, False]),
        ([(8, 10, 5), (16, 20, 5)], [True, True]),
        ([(8, None, None), (8, 10, 5)], [False, True]),
    ],
)
def test_cells_that_pay(costs: list[tuple[int, float | None, float | None]], pays: list[bool]) -> None:
    found = table("0", "", [cell(*cost) for cost in costs])
    assert [item.pareto for item in found.cells] == pays


def test_every_cell_is_the_plan_of_its_problem(server: Server) -> None:
    asked = sweep(memory_limits=["1x", "2x", 0.5], microbatches=[4, 8], placements=["linear", "v"])
    first = server.post(asked, path="/v1/sweeps")
    assert first.status_code in (200, 202)
    path = first.headers["content-location"]
    done = server.get(path, Prefer="wait=60")
    assert (done.status_code, done.headers["preference-applied"]) == (200, "wait=60")
    found = SweepResource.parse_json(done.content)
    assert (found.status, path) == ("done", f"/v1/sweeps/{found.key}")
    assert [item.status for item in found.cells] == ["done", "refused"] * 2 * 2 + ["refused"] * 4
    for item in found.cells:
        if item.status == "refused":
            assert item.error is not None
            assert item.error.status == 422
            continue
        own = {"memory_limit": item.memory_limit, "microbatches": item.microbatches, "placement": item.placement}
        assert item.key == Problem.parse({**asked["problem"], **own}).key
        plan = server.get(f"/v1/plans/{item.key}").json()["plan"]
        assert (item.iteration_ms, item.bound_ms) == (plan["metrics"]["iteration_ms"], plan["bound"]["iteration_ms"])
        assert (item.bubble_rate, item.peak_bytes) == (
            plan["metrics"]["bubble_rate"],
            max(plan["metrics"]["peak_bytes"]),
        )
    assert {item.microbatches for item in found.cells if item.pareto} == {4, 8}
    assert server.post(asked, path="/v1/sweeps").content == done.content
    assert server.get(path, **{"If-None-Match": done.headers["etag"]}).status_code == 304


def test_axes_that_are_left_out_stay_as_the_problem_has_them(server: Server) -> None:
    answer = server.post(sweep(), path="/v1/sweeps", wait_s=30)
    (only,) = answer.json()["cells"]
    assert (only["memory_limit"], only["microbatches"], only["placement"]) == ("1x", 8, "auto")
    assert only["pareto"]


def test_sweep_may_refer_to_a_profile(server: Server) -> None:
    asked = sweep(microbatches=[4])
    server.post({**asked["problem"]["profile"], "name": "swept"}, path="/v1/profiles")
    asked["problem"]["profile"] = {"ref": "swept"}
    assert server.post(asked, path="/v1/sweeps", wait_s=30).json()["cells"][0]["status"] == "done"
    asked["problem"]["profile"] = {"ref": "unknown"}
    answer = server.post(asked, path="/v1/sweeps")
    assert_problem_details(answer, 422, "invalid_input")
    assert answer.json()["errors"][0]["path"] == "$.problem.profile.ref"


@pytest.mark.parametrize(
    ("axes", "path"),
    [
        ({"memory_limits": []}, "$.memory_limits"),
        ({"microbatches": ["many"]}, "$.microbatches[0]"),
        ({"limits": ["1x"]}, "$.limits"),
        ({"microbatches": list(range(1, 202))}, "$"),
        ({"microbatches": [4] * 50, "placements": ["linear"] * 3, "memory_limits": ["1x", "2x"]}, "$"),
        ({"problem": {}}, "$.problem.profile"),
    ],
)
def test_wrong_sweeps_are_refused(server: Server, axes: dict[str, Any], path: str) -> None:
    answer = server.post({**sweep(), **axes}, path="/v1/sweeps")
    assert_problem_details(answer, 422, "invalid_input")
    assert path in [item["path"] for item in answer.json()["errors"]]


def test_unknown_sweep(server: Server) -> None:
    assert_problem_details(server.get("/v1/sweeps/nothing"), 404, "not_found")


def test_many_who_wait_for_a_sweep_take_one_place_at_the_desk(tmp_path: Path) -> None:
    asked = sweep("held", microbatches=[4])
    with running(tmp_path, max_waiting=1) as server, ThreadPoolExecutor(20) as crowd:
        answer = server.post(asked, path="/v1/sweeps")
        path = answer.headers["content-location"]
        waiting = [crowd.submit(server.get, path, Prefer="wait=60") for _ in range(20)]
        wait_until(lambda: server.get(path).json()["cells"][0]["status"] == "solving")
        server.let(server.get(path).json()["cells"][0]["key"], "release")
        assert {answer.result(timeout=60).status_code for answer in waiting} == {200}


def test_stopped_sweep_keeps_its_plans_and_is_taken_up_by_another_post(tmp_path: Path) -> None:
    asked = sweep("held", microbatches=[4, 5, 6])
    with running(tmp_path) as server:
        answer = server.post(asked, path="/v1/sweeps")
        path = answer.headers["content-location"]
        wait_until(lambda: all(item["key"] for item in server.get(path).json()["cells"]))
        with server.client() as client:
            stopped = client.delete(path)
        assert (stopped.status_code, stopped.json()["status"]) == (200, "done")
        assert {item["status"] for item in stopped.json()["cells"]} == {"cancelled"}
        assert all(item["iteration_ms"] for item in stopped.json()["cells"])
        for item in stopped.json()["cells"]:
            server.let(item["key"], "release")
        again = server.post(asked, path="/v1/sweeps", wait_s=60)
        assert {item["status"] for item in again.json()["cells"]} == {"done"}


def test_cells_that_a_stopped_sweep_did_not_post_say_so(tmp_path: Path) -> None:
    with running(tmp_path, max_jobs=0) as server:
        path = server.post(sweep(), path="/v1/sweeps").headers["content-location"]
        with server.client() as client:
            stopped = client.delete(path).json()
        assert [(item["status"], item["error"]["status"]) for item in stopped["cells"]] == [("refused", 409)]


def test_sweep_goes_on_after_a_restart(tmp_path: Path) -> None:
    asked = sweep(microbatches=[4, 5, 6, 7])
    with running(tmp_path, max_jobs=0) as server:
        answer = server.post(asked, path="/v1/sweeps")
        path = answer.headers["content-location"]
        assert {item["status"] for item in answer.json()["cells"]} == {"waiting"}
    with running(tmp_path) as server:
        found = server.get(path, Prefer="wait=60").json()
        assert {item["status"] for item in found["cells"]} == {"done"}


class Fatal(Clerks):
    """Refuses cells for the sake of the service, as when no worker survives them, and does the rest."""

    async def run(self, function: Callable[..., Any], *args: Any, **kwargs: Any) -> Any:
        if function is sweep_desk.submit:
            raise Refusal(CRASHED)
        return await asyncio.to_thread(function, *args, **kwargs)


def test_cell_that_no_worker_survives_is_refused_until_the_sweep_is_posted_again(
    database: Database, database_url: str
) -> None:
    settings = Settings(database_url=database_url)

    async def posted(clerks: Clerks) -> SweepResource:
        some = Sweeping(settings, Sweeps(database), planners=clerks, judges=clerks, posted=str, stop=asyncio.sleep)
        key = await some.submit(json.dumps(asked).encode(), None)
        found = SweepResource.parse_json((await some.table(key, 30)).representation.body)
        await clerks.stop()
        return found

    asked = sweep()
    found = asyncio.run(posted(Fatal(settings)))
    assert (found.status, [item.status for item in found.cells]) == ("done", ["refused"])
    sweep_desk.add(settings, json.dumps(asked).encode(), None)
    assert sweep_desk.waiting(settings, found.key) == [0]


def test_cell_that_was_stopped_at_another_replica_is_not_posted(database: Database, database_url: str) -> None:
    settings = Settings(database_url=database_url)
    key = sweep_desk.add(settings, json.dumps(sweep()).encode(), None)
    assert sweep_desk.cancel(settings, key) == []
    assert sweep_desk.submit(settings, key, 0) == ""
    assert Store(database).under_way() == 0


def test_cell_that_is_stopped_while_it_is_posted_is_not_solved(
    database: Database, database_url: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    settings = Settings(database_url=database_url)
    key = sweep_desk.add(settings, json.dumps(sweep()).encode(), None)
    keep = sweep_desk.keep

    def keep_late(*args: Any) -> None:
        keep(*args)
        assert sweep_desk.cancel(settings, key) == []

    monkeypatch.setattr(sweep_desk, "keep", keep_late)
    assert sweep_desk.submit(settings, key, 0) == ""
    assert (Store(database).under_way(), Store(database).queued()) == (0, [])


class Flickering(Clerks):
    """Cannot use the store the first two times it is asked which cells wait, and does all else."""

    failures = 2

    async def run(self, function: Callable[..., Any], *args: Any, **kwargs: Any) -> Any:
        if function is sweep_desk.waiting and self.failures:
            self.failures -= 1
            raise OperationalError("SELECT 1", {}, Exception("away")) if self.failures else Refusal(CRASHED)
        return await asyncio.to_thread(function, *args, **kwargs)


def test_sweep_whose_cells_cannot_be_listed_for_a_while_goes_on_by_itself(
    database: Database, database_url: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(sweeping, "RETRY_AFTER_S", 0.01)
    settings = Settings(database_url=database_url)

    async def check() -> None:
        clerks, posted = Flickering(settings), asyncio.Queue[str]()
        some = Sweeping(
            settings,
            Sweeps(database),
            planners=clerks,
            judges=clerks,
            posted=posted.put_nowait,
            stop=asyncio.sleep,
        )
        await some.submit(json.dumps(asked).encode(), None)
        async with asyncio.timeout(60):
            assert {await posted.get() for _ in range(2)} == set(Store(database).queued())
        await some.end()
        await clerks.stop()

    asked = sweep(microbatches=[4, 5])
    asyncio.run(check())


def test_damaged_documents_keep_no_service_from_its_start_and_from_its_other_sweeps(
    tmp_path: Path, database: Database, database_url: str
) -> None:
    asked, other = sweep(microbatches=[4, 5]), sweep(microbatches=[4, 5])
    with running(tmp_path, database_url=database_url, max_jobs=0) as server:
        damaged, sound = (server.post(each, path="/v1/sweeps").headers["content-location"] for each in (asked, other))
    known = added(Store(database), Problem.parse(problem()))
    with database.write() as connection:
        spoil = {"damaged": damaged.rpartition("/")[2], "key": known.key, "text": b"{"}
        connection.execute(text("UPDATE sweeps SET document = :text WHERE key = :damaged"), spoil)
        connection.execute(text("UPDATE problems SET problem = :text WHERE key = :key"), spoil)
    with running(tmp_path, database_url=database_url, retry_after_s=0) as server:
        found = server.get(sound, Prefer="wait=60").json()
        assert {item["status"] for item in found["cells"]} == {"done"}
        assert_problem_details(server.get(damaged), 404, "not_found")
        mended = server.post(asked, path="/v1/sweeps", wait_s=60)
        assert (mended.headers["content-location"], mended.json()["status"]) == (damaged, "done")
        failed = server.get(f"/v1/plans/{known.key}", Prefer="wait=60").json()
        assert (failed["status"], failed["error"]["type"]) == ("failed", "urn:zbplan:error:damaged")
        assert server.post(known.model_dump(), wait_s=60).json()["status"] == "done"
