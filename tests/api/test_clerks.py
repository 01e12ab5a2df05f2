"""Clerks, with real processes, and the line before them."""

from __future__ import annotations

import asyncio
import os
import signal
import time
from collections.abc import AsyncIterator
from concurrent.futures import ThreadPoolExecutor, as_completed
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

import pytest

from api import clerks as module
from api.clerks import Clerks
from api.refusal import Refusal
from api.settings import Settings
from tests.api.servers import members, problem, running
from tests.api.test_guard import assert_turned_away


@asynccontextmanager
async def clerks(**settings: Any) -> AsyncIterator[Clerks]:
    made = Clerks(Settings.parse(settings))
    try:
        yield made
    finally:
        await made.stop()


def wait_for(path: Path) -> None:
    path.with_suffix(".began").touch()
    while not path.exists():
        time.sleep(0.02)


async def begun(path: Path) -> None:
    async with asyncio.timeout(60):
        while not path.with_suffix(".began").exists():
            await asyncio.sleep(0.02)


def test_line_has_an_end_and_what_the_service_itself_wants_goes_past_it(tmp_path: Path) -> None:
    async def check() -> None:
        async with clerks(max_waiting=2) as some:
            waiting = [asyncio.create_task(some.serve(wait_for, tmp_path / "go")) for _ in range(2)]
            await begun(tmp_path / "go")
            with pytest.raises(Refusal) as refused:
                await some.serve(divmod, 7, 2)
            assert (refused.value.document.status, refused.value.document.type) == (503, "urn:zbplan:error:busy")
            own = asyncio.create_task(some.run(divmod, 7, 2))
            (tmp_path / "go").touch()
            assert await own == (3, 1)
            await asyncio.gather(*waiting)
            assert await some.serve(divmod, 7, 2) == (3, 1)

    asyncio.run(check())


def test_turn_that_does_not_come_is_not_waited_for(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    async def check() -> None:
        async with clerks(desk_limit_s=60) as some:
            first = asyncio.create_task(some.serve(wait_for, tmp_path / "go"))
            await begun(tmp_path / "go")
            monkeypatch.setattr(module, "LINE_S", -59.9)
            with pytest.raises(Refusal) as refused:
                await some.serve(divmod, 7, 2)
            assert (refused.value.document.status, refused.value.document.type) == (503, "urn:zbplan:error:busy")
            (tmp_path / "go").touch()
            await first

    asyncio.run(check())


def test_one_at_work_is_proof_until_its_time_is_up(tmp_path: Path) -> None:
    async def check() -> None:
        async with clerks() as some:
            busy = asyncio.create_task(some.serve(wait_for, tmp_path / "go"))
            await begun(tmp_path / "go")
            await some.prove()
            assert not busy.done()
            some._went_on_at_s -= 61
            late = asyncio.create_task(some.prove())
            await asyncio.sleep(0.1)
            assert not late.done()
            (tmp_path / "go").touch()
            await asyncio.gather(busy, late)

    asyncio.run(check())


@pytest.mark.parametrize(
    ("function", "argument", "status", "kind"),
    [(bytearray, 1 << 30, 422, "memory"), (time.sleep, 60, 503, "overrun"), (os._exit, 7, 503, "crashed")],
)
def test_what_cannot_be_done_is_told(function: Any, argument: int, status: int, kind: str) -> None:
    async def check() -> None:
        async with clerks(solver_memory_bytes=1 << 30, desk_limit_s=0.5 if kind == "overrun" else 60) as some:
            with pytest.raises(Refusal) as refused:
                await some.serve(function, argument)
            document = refused.value.document
            assert (document.status, document.type) == (status, f"urn:zbplan:error:{kind}")

    asyncio.run(check())


def test_problem_too_large_for_the_memory_is_refused_and_can_be_posted_again(tmp_path: Path) -> None:
    large = problem(devices=64, microbatches=1300, placement="linear", memory_limit=None)
    large["profile"]["stages"] = 64
    with running(tmp_path, solver_memory_bytes=1 << 28) as server:
        for _ in range(2):
            answer = server.post(large)
            assert (answer.status_code, answer.json()["type"]) == (422, "urn:zbplan:error:memory")
            assert "ZBPLAN_SOLVER_MEMORY_BYTES" in answer.json()["errors"][0]["needed"]
        assert server.get("/v1/plans").json()["plans"] == []


def test_comparisons_hold_up_neither_plans_nor_readiness(tmp_path: Path) -> None:
    with running(tmp_path, max_waiting=1) as server, ThreadPoolExecutor(2) as crowd:
        before = members(server.process.pid)
        assert server.post(problem(), path="/v1/compare").status_code == 200
        (judge,) = set(members(server.process.pid)) - set(before)
        os.kill(judge, signal.SIGSTOP)
        try:
            comparisons = [crowd.submit(server.post, problem(), path="/v1/compare") for _ in range(2)]
            first = next(as_completed(comparisons))
            assert_turned_away(first.result(), 503, "busy")
            assert server.post(problem()).status_code in (200, 202)
            assert server.get("/readyz").status_code == 200
        finally:
            os.kill(judge, signal.SIGCONT)
        comparisons.remove(first)
        assert comparisons[0].result(timeout=60).status_code == 200


def test_stored_plan_is_judged_and_served_while_the_planners_are_busy(tmp_path: Path) -> None:
    with running(tmp_path) as server:
        stored = server.post(problem(), wait_s=30)
    with running(tmp_path, max_waiting=1) as server, ThreadPoolExecutor(2) as crowd:
        assert server.get("/readyz").status_code == 200
        workers = members(server.process.pid)
        for worker in workers:
            os.kill(worker, signal.SIGSTOP)
        try:
            posts = [crowd.submit(server.post, problem()) for _ in range(2)]
            first = next(as_completed(posts))
            assert_turned_away(first.result(), 503, "busy")
            assert server.get(f"/v1/plans/{stored.json()['key']}").content == stored.content
        finally:
            for worker in workers:
                os.kill(worker, signal.SIGCONT)
        posts.remove(first)
        assert posts[0].result(timeout=60).status_code in (200, 202)
