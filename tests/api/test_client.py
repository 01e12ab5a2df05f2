"""The client of training jobs against a real service that is guarded and busy."""

from __future__ import annotations

import json
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from datetime import datetime
from pathlib import Path
from typing import Any

import pytest
from typer.testing import CliRunner

from api.answers import RETRY_AFTER_S
from api.database import Database, require_database
from api.tokens import Tokens
from runtime_client.errors import FetchError
from runtime_client.service import PlanSoFarWarning, download
from tests.api.servers import DATABASE, Server, problem, running, wait_until
from zbplan.cli import app
from zbplan.plan import Plan
from zbplan.validate import validate


@pytest.fixture(scope="module")
def tokens(tmp_path_factory: pytest.TempPathFactory) -> Iterator[tuple[Path, dict[str, str]]]:
    """A folder with a store, and a token of each role for it."""
    folder = tmp_path_factory.mktemp("client")
    url = f"sqlite:///{folder / DATABASE}"
    require_database(url)
    database = Database(url)
    yield folder, {role: Tokens(database).add(role, role) for role in ("read", "write")}
    database.close()


@pytest.fixture(scope="module")
def server(tokens: tuple[Path, dict[str, str]]) -> Iterator[Server]:
    with running(tokens[0], max_jobs=1) as service:
        yield service


def stop(server: Server, key: str, token: str) -> None:
    with server.client(headers={"Authorization": f"Bearer {token}"}) as client:
        assert client.delete(f"/v1/plans/{key}").status_code == 200


def posts(server: Server) -> list[dict[str, Any]]:
    """Return what the log says of problems that were posted."""
    lines = map(json.loads, (server.folder / "log.txt").read_text().splitlines())
    return [line for line in lines if line["event"] == "request" and line["method"] == "POST"]


def test_token_lets_a_job_in(server: Server, tokens: tuple[Path, dict[str, str]]) -> None:
    plan = download(server.url, problem(), timeout_s=60, token=tokens[1]["write"])
    assert validate(plan) == []
    assert download(server.url, plan.key, timeout_s=60, token=tokens[1]["read"]).plan_id == plan.plan_id


def test_command_takes_its_token_from_the_environment(
    server: Server, tokens: tuple[Path, dict[str, str]], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    plan = download(server.url, problem(), timeout_s=60, token=tokens[1]["write"])
    arguments = ["fetch", server.url, plan.key, "-o", str(tmp_path / "plan.json")]
    assert CliRunner().invoke(app, arguments).exit_code == 2
    monkeypatch.setenv("ZBPLAN_TOKEN", tokens[1]["read"])
    assert CliRunner().invoke(app, arguments).exit_code == 0
    assert Plan.read(tmp_path / "plan.json") == plan


@pytest.mark.parametrize(("token", "status"), [(None, 401), ("wrong", 401), ("read", 403)])
def test_refused_job_is_told_at_once(
    server: Server, tokens: tuple[Path, dict[str, str]], token: str | None, status: int
) -> None:
    before = len(posts(server))
    with pytest.raises(FetchError, match=f"found status {status}, .* token"):
        download(server.url, problem(), timeout_s=60, token=tokens[1].get(token or "", token))
    wait_until(lambda: len(posts(server)) == before + 1)


def test_job_comes_back_when_the_service_says_so(server: Server, tokens: tuple[Path, dict[str, str]]) -> None:
    token = tokens[1]["write"]
    before = len(posts(server))
    with pytest.warns(PlanSoFarWarning):
        held = download(server.url, problem("held"), timeout_s=1, token=token)
    assert validate(held) == []
    with ThreadPoolExecutor(1) as job:
        waiting = job.submit(download, server.url, problem(), timeout_s=60, token=token)
        wait_until(lambda: [post["status"] for post in posts(server)][before + 1 :] == [503])
        stop(server, held.key, token)
        assert validate(waiting.result()) == []
    wait_until(lambda: len(posts(server)) == before + 3)
    _, refused, taken = (datetime.fromisoformat(post["timestamp"]) for post in posts(server)[before:])
    assert (taken - refused).total_seconds() > RETRY_AFTER_S
