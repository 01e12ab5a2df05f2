"""Who gets in, over HTTP."""

from __future__ import annotations

import asyncio
import json
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from pathlib import Path

import httpx
import pytest

from api.catalog import Shown
from api.database import Database, require_database
from api.guard import allowed_hosts, is_loopback, require_protection
from api.refusal import Refusal
from api.service import Service
from api.settings import Settings
from api.tokens import Tokens
from tests.api.servers import DATABASE, Server, problem, running, wait_until
from zbplan.errors import InvalidInputError


@dataclass(frozen=True)
class Guarded:
    """A service that others could reach, and the tokens for it."""

    server: Server
    tokens: Tokens
    reader: str
    writer: str

    def ask(self, method: str, path: str, secret: str | None = None, **options: object) -> httpx.Response:
        headers = {"Content-Type": "application/json"} | ({"Authorization": f"Bearer {secret}"} if secret else {})
        with self.server.client(headers=headers) as client:
            return client.request(method, path, **options)  # type: ignore[arg-type]


@pytest.fixture(scope="module")
def guarded(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Guarded]:
    folder = tmp_path_factory.mktemp("guarded")
    url = f"sqlite:///{folder / DATABASE}"
    require_database(url)
    database = Database(url)
    tokens = Tokens(database)
    secrets = [tokens.add(name, role) for name, role in (("reader", "read"), ("writer", "write"))]
    with running(folder, host="0.0.0.0", allowed_hosts="planner", max_jobs=2, max_jobs_per_token=1) as server:
        yield Guarded(server, tokens, *secrets)
    database.close()


@pytest.mark.parametrize("path", ["/healthz", "/readyz"])
def test_probes_need_no_token_and_no_name(guarded: Guarded, path: str) -> None:
    assert guarded.server.get(path, Host="anything").status_code == 200


@pytest.mark.parametrize("path", ["/v1/plans", "/metrics", "/openapi.json", "/nothing"])
def test_everything_else_needs_a_token(guarded: Guarded, path: str) -> None:
    for secret in (None, "wrong", guarded.reader[:-1]):
        answer = guarded.ask("GET", path, secret)
        assert (answer.status_code, answer.json()["type"]) == (401, "urn:zbplan:error:unauthorized")
        assert answer.headers["www-authenticate"] == "Bearer"
    assert guarded.ask("GET", path, guarded.reader).status_code in (200, 404)


def test_no_other_scheme_gets_in(guarded: Guarded) -> None:
    assert guarded.server.get("/v1/plans", Authorization=f"Basic {guarded.reader}").status_code == 401
    assert guarded.server.get("/v1/plans", Authorization=f"bearer  {guarded.reader}").status_code == 200


def test_reader_reads_and_judges_and_changes_nothing(guarded: Guarded) -> None:
    assert guarded.ask("POST", "/v1/validate", guarded.reader, content="{}").status_code == 422
    for method, path in (("POST", "/v1/plans"), ("POST", "/v1/profiles"), ("DELETE", "/v1/plans/x")):
        answer = guarded.ask(method, path, guarded.reader)
        assert (answer.status_code, answer.json()["type"]) == (403, "urn:zbplan:error:forbidden")
        assert "'reader'" in answer.json()["detail"]


def test_writer_writes(guarded: Guarded) -> None:
    headers = {"Prefer": "wait=30", "Authorization": f"Bearer {guarded.writer}", "Content-Type": "application/json"}
    with guarded.server.client(headers=headers) as client:
        assert client.post("/v1/plans", content=json.dumps(problem())).status_code == 200


def test_share_and_queue_have_an_end(guarded: Guarded) -> None:
    held, others = [problem("held"), problem("held")], [problem(), problem()]
    second = guarded.tokens.add("second", "write")
    wait_until(lambda: guarded.ask("GET", "/v1/plans", second).status_code == 200)
    keys = [guarded.ask("POST", "/v1/plans", guarded.writer, content=json.dumps(held[0])).json()["key"]]
    share = guarded.ask("POST", "/v1/plans", guarded.writer, content=json.dumps(others[0]))
    assert (share.status_code, share.json()["type"], share.headers["retry-after"]) == (
        429,
        "urn:zbplan:error:share",
        "5",
    )
    keys.append(guarded.ask("POST", "/v1/plans", second, content=json.dumps(held[1])).json()["key"])
    full = guarded.ask("POST", "/v1/plans", guarded.writer, content=json.dumps(others[1]))
    assert_turned_away(full, 503, "busy")
    assert guarded.ask("POST", "/v1/plans", guarded.writer, content=json.dumps(held[0])).status_code == 202
    for key in keys:
        assert guarded.ask("DELETE", f"/v1/plans/{key}", guarded.writer).status_code == 200


def test_who_posts_the_same_is_not_refused_for_the_share_of_another(tmp_path: Path) -> None:
    """The second asks before the first is answered: nothing goes on between the two."""
    settings = Settings.parse({"database_url": f"sqlite:///{tmp_path / DATABASE}", "max_jobs_per_token": 0})
    require_database(settings.database_url)

    async def check() -> None:
        service = Service(settings, submitted=str)
        await service.start()
        try:
            asked = json.dumps(problem()).encode()
            first, second = await asyncio.gather(
                service.submit(asked, "first"), service.submit(asked, None), return_exceptions=True
            )
        finally:
            await service.stop()
        assert isinstance(first, Refusal)
        assert first.document.status == 429
        assert isinstance(second, Shown)

    asyncio.run(check())


def test_revoked_token_does_not_get_in_for_long(guarded: Guarded) -> None:
    secret = guarded.tokens.add("passing", "read")
    wait_until(lambda: guarded.ask("GET", "/v1/plans", secret).status_code == 200)
    guarded.tokens.revoke("passing")
    wait_until(lambda: guarded.ask("GET", "/v1/plans", secret).status_code == 401)


def test_revoked_token_ends_what_it_began(guarded: Guarded) -> None:
    secret = guarded.tokens.add("leaving", "read")
    wait_until(lambda: guarded.ask("GET", "/v1/plans", secret).status_code == 200)
    held = guarded.ask("POST", "/v1/plans", guarded.writer, content=json.dumps(problem("held"))).json()["key"]
    path, headers = f"/v1/plans/{held}", {"Authorization": f"Bearer {secret}"}
    with ThreadPoolExecutor(1) as other, guarded.server.client(headers=headers) as client:
        waiting = other.submit(guarded.server.get, path, Prefer="wait=60", **headers)
        with client.stream("GET", f"{path}/events") as events:
            lines = events.iter_lines()
            assert "event: incumbent" in (next(lines), next(lines))
            guarded.tokens.revoke("leaving")
            assert "event: done" not in list(lines)
        refused = waiting.result(timeout=30)
    assert (refused.status_code, refused.json()["type"]) == (401, "urn:zbplan:error:unauthorized")
    assert guarded.ask("GET", path, guarded.reader).json()["status"] in ("queued", "solving")
    assert guarded.ask("DELETE", path, guarded.writer).status_code == 200


@pytest.mark.parametrize("host", ["planner", "PLANNER:80", "localhost:1", "127.0.0.1", "[::1]:8642", "0.0.0.0"])
def test_known_hosts(guarded: Guarded, host: str) -> None:
    answer = guarded.server.get("/v1/plans", Host=host, Authorization=f"Bearer {guarded.reader}")
    assert answer.status_code == 200


@pytest.mark.parametrize("host", ["evil.example", "planner.evil.example", "localhost.evil.example:80", "127.0.0.1.x"])
def test_other_hosts(guarded: Guarded, host: str) -> None:
    answer = guarded.server.get("/v1/plans", Host=host, Authorization=f"Bearer {guarded.reader}")
    assert (answer.status_code, answer.json()["errors"][0]["path"]) == (421, "Host")
    assert "ZBPLAN_ALLOWED_HOSTS" in answer.json()["detail"]


def test_any_host_may_be_allowed() -> None:
    assert "*" in allowed_hosts(Settings.parse({"allowed_hosts": "*"}))


@pytest.mark.parametrize(
    ("host", "loopback"),
    [("127.0.0.1", True), ("127.8.8.8", True), ("::1", True), ("localhost", True), ("0.0.0.0", False), ("::", False)],
)
def test_loopback(host: str, loopback: bool) -> None:
    assert is_loopback(host) == loopback


def test_nobody_listens_to_others_without_a_token_unless_told(tmp_path: Path) -> None:
    url = f"sqlite:///{tmp_path / DATABASE}"
    require_database(url)
    open_to_all = {"host": "0.0.0.0", "database_url": url}
    with pytest.raises(InvalidInputError, match="needed a token"):
        require_protection(Settings.parse(open_to_all))
    require_protection(Settings.parse({**open_to_all, "insecure": True}))
    require_protection(Settings.parse({**open_to_all, "host": "127.0.0.1"}))
    database = Database(url)
    Tokens(database).add("training", "write")
    database.close()
    require_protection(Settings.parse(open_to_all))


def assert_turned_away(answer: httpx.Response, status: int, name: str) -> None:
    assert (answer.status_code, answer.json()["type"]) == (status, f"urn:zbplan:error:{name}")
    assert int(answer.headers["retry-after"]) > 0
