"""Start and stop of the process."""

from __future__ import annotations

import asyncio
import json
import signal
import socket
from pathlib import Path

import httpx
import pytest

from api.database import require_database
from api.server import listening
from api.settings import Settings
from tests.api.servers import problem, running, wait_until
from zbplan.errors import InvalidInputError
from zbplan.plan import Plan
from zbplan.validate import validate


def test_solves_with_the_solver_unless_told_otherwise(tmp_path: Path) -> None:
    with running(tmp_path, solve=Settings.parse({}).solve) as server:
        answer = server.post(problem(time_limit_s=2), wait_s=60)
        assert (answer.status_code, answer.json()["status"]) == (200, "done")
        assert validate(Plan.parse(answer.json()["plan"])) == []


def test_stop_ends_a_long_search_and_leaves_no_process(tmp_path: Path) -> None:
    asked = problem(microbatches=64, memory_limit="0.6x", time_limit_s=600)  # not proven within seconds
    asked["profile"] |= {"t_f_ms": [10, 11, 12, 13], "t_w_ms": [5, 4, 3, 6]}
    with running(tmp_path, solve=Settings.parse({}).solve) as server:
        key = server.post(asked).json()["key"]
        wait_until(lambda: server.get(f"/v1/plans/{key}").json()["status"] == "solving")
        assert server.stop() == 0


def test_slow_body_does_not_hold_a_connection(tmp_path: Path) -> None:
    with running(tmp_path, max_body_s=0.2) as server:
        address = httpx.URL(server.url)
        with socket.create_connection((address.host, address.port or 80), timeout=30) as connection:
            head = f"POST /v1/plans HTTP/1.1\r\nHost: {address.host}\r\nContent-Type: application/json\r\n"
            connection.sendall(f"{head}Content-Length: 100\r\n\r\n{{".encode())
            answer = b"".join(iter(lambda: connection.recv(4096), b""))
        assert answer.startswith(b"HTTP/1.1 408 ")
        assert b"urn:zbplan:error:too_slow" in answer


def test_client_that_goes_away_amid_its_body_is_no_failure_of_the_service(tmp_path: Path) -> None:
    with running(tmp_path) as server:
        address = httpx.URL(server.url)
        with socket.create_connection((address.host, address.port or 80), timeout=30) as connection:
            head = f"POST /v1/plans HTTP/1.1\r\nHost: {address.host}\r\nContent-Type: application/json\r\n"
            connection.sendall(f"{head}Content-Length: 100\r\n\r\n{{".encode())
        wait_until(lambda: '"path": "/v1/plans"' in server.log())
        (noted,) = [line for line in map(json.loads, server.log().splitlines()) if line.get("path") == "/v1/plans"]
        assert noted["status"] == 400
        assert "Traceback" not in server.log()


def test_slow_bodies_do_not_fill_the_memory(tmp_path: Path) -> None:
    with running(tmp_path, max_bodies_bytes=20_000) as server:
        address = httpx.URL(server.url)
        head = f"POST /v1/compare HTTP/1.1\r\nHost: {address.host}\r\nContent-Type: application/json\r\n"
        slow = [socket.create_connection((address.host, address.port or 80), timeout=30) for _ in range(3)]
        for connection in slow[:2]:
            connection.sendall(f"{head}Content-Length: 100000\r\n\r\n".encode() + b" " * 9_000)
        wait_until(lambda: server.post(problem(), path="/v1/compare").status_code == 200)
        slow[2].sendall(f"{head}Content-Length: 100000\r\n\r\n".encode() + b" " * 9_000)
        answer = b"".join(iter(lambda: slow[2].recv(4096), b""))
        assert answer.startswith(b"HTTP/1.1 503 ")
        assert b"urn:zbplan:error:busy" in answer
        for connection in slow:
            connection.close()
        wait_until(lambda: server.post({**problem(), "padding": " " * 15_000}, path="/v1/compare").status_code == 422)


def test_impatient_stop_leaves_no_process(tmp_path: Path) -> None:
    with running(tmp_path) as server:
        server.begin(problem("held"))
        server.process.send_signal(signal.SIGINT)
        server.stop(signal.SIGINT)


def test_small_answers_go_out_without_delay() -> None:
    async def check() -> None:
        loop = asyncio.get_running_loop()
        accepted: asyncio.Future[asyncio.StreamWriter] = loop.create_future()
        with listening("127.0.0.1", 0) as listener:
            server = await asyncio.start_server(lambda _, writer: accepted.set_result(writer), sock=listener)
            _, writer = await asyncio.open_connection(*listener.getsockname())
            connection = await asyncio.wait_for(accepted, 10)
            assert connection.get_extra_info("socket").getsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY)
            for end in (connection, writer):
                end.close()
                await end.wait_closed()
            server.close()

    asyncio.run(check())


def test_address_in_use_is_an_error() -> None:
    with socket.create_server(("127.0.0.1", 0)) as taken, pytest.raises(OSError, match="in use"):
        listening("127.0.0.1", taken.getsockname()[1])


def test_listens_on_ipv6(tmp_path: Path) -> None:
    if not socket.has_dualstack_ipv6():
        pytest.skip("no IPv6 on this machine")
    with running(tmp_path, host="::1") as server:
        assert server.url.startswith("http://[::1]:")
        assert server.get("/healthz").status_code == 200


@pytest.mark.parametrize(
    ("database_url", "why"),
    [
        ("sqlite:////missing/folder/plans.sqlite3", "unable to open database file"),
        ("sqlite://", "several processes"),
        ("sqlite:///:memory:", "several processes"),
        ("plans.sqlite3", "Could not parse"),
        ("nothing:///plans", "nothing"),
        ("nothing://me:secret@host/plans", r"me:\*\*\*@host"),
    ],
)
def test_store_that_cannot_be_used_is_told(database_url: str, why: str) -> None:
    with pytest.raises(InvalidInputError, match=why) as raised:
        require_database(database_url)
    assert raised.value.findings[0].path == "database_url"
