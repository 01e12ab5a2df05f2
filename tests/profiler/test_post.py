import threading
import time
from collections.abc import Iterator
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from types import SimpleNamespace

import pytest

from profiler.errors import PostError
from profiler.post import post
from zbplan.profile import Profile

PROFILE = Profile.parse(
    {"stages": 1, "t_f_ms": 1, "t_b_ms": 1, "t_w_ms": 1, "t_comm_ms": 0, "m_b_bytes": 1, "m_w_bytes": 1}
)


class Service(ThreadingHTTPServer):
    """Keeps what is posted and answers with one status after the other, the last one for good."""

    def __init__(self) -> None:
        super().__init__(("127.0.0.1", 0), Answer)
        self.statuses = [201]
        self.headers: dict[str, str] = {}
        self.received: list[tuple[str, dict[str, str], bytes]] = []

    @property
    def url(self) -> str:
        return f"http://127.0.0.1:{self.server_port}"


class Answer(BaseHTTPRequestHandler):
    server: Service

    def do_POST(self) -> None:
        body = self.rfile.read(int(self.headers["content-length"]))
        headers = {name.lower(): value for name, value in self.headers.items()}
        self.server.received.append((self.path, headers, body))
        statuses = self.server.statuses
        self.send_response(statuses.pop(0) if len(statuses) > 1 else statuses[0])
        for name, value in self.server.headers.items():
            self.send_header(name, value)
        self.end_headers()
        self.wfile.write(b"the reason")

    def log_message(self, *_: object) -> None:
        pass


@pytest.fixture
def service() -> Iterator[Service]:
    with Service() as server:
        thread = threading.Thread(target=server.serve_forever, kwargs={"poll_interval": 0.05})
        thread.start()
        yield server
        server.shutdown()
        thread.join()


@pytest.fixture(autouse=True)
def pauses(monkeypatch: pytest.MonkeyPatch) -> list[float]:
    """The pauses that posting asks for, none of which is slept."""
    asked: list[float] = []
    monkeypatch.setattr("zbplan.client.time", SimpleNamespace(sleep=asked.append, monotonic=time.monotonic))
    return asked


def test_a_profile_arrives_as_it_is(service: Service) -> None:
    assert post(PROFILE, service.url + "/") == f"{service.url}/v1/profiles"
    ((path, headers, body),) = service.received
    assert (path, headers["content-type"]) == ("/v1/profiles", "application/json")
    assert "authorization" not in headers
    assert Profile.parse_json(body) == PROFILE


def test_a_token_is_sent(service: Service) -> None:
    post(PROFILE, service.url, token="abc")
    ((_, headers, _),) = service.received
    assert headers["authorization"] == "Bearer abc"


def test_a_busy_service_is_asked_again_after_longer_and_longer_pauses(service: Service, pauses: list[float]) -> None:
    service.statuses = [503, 429, 500, 201]
    post(PROFILE, service.url)
    assert [body for _, _, body in service.received] == [PROFILE.to_json().encode()] * 4
    assert len(pauses) == 3
    assert all(longest / 2 <= pause <= longest for pause, longest in zip(pauses, (0.5, 1.0, 2.0), strict=True))


def test_a_service_that_wants_to_be_left_alone_is(service: Service, pauses: list[float]) -> None:
    service.statuses, service.headers = [503, 201], {"Retry-After": "5"}
    post(PROFILE, service.url)
    assert 5.25 <= pauses[0] <= 5.5


def test_a_service_that_wants_to_be_left_alone_for_days_is_given_up(service: Service, pauses: list[float]) -> None:
    service.statuses, service.headers = [503], {"Retry-After": "999999"}
    with pytest.raises(PostError, match="found status 503"):
        post(PROFILE, service.url)
    assert (len(service.received), pauses) == (1, [])


def test_a_token_that_no_header_can_carry_is_refused(service: Service) -> None:
    with pytest.raises(PostError, match="found a token with characters that no header can carry"):
        post(PROFILE, service.url, token="schlüssel")
    assert service.received == []


def test_a_refusal_is_told_at_once(service: Service, pauses: list[float]) -> None:
    service.statuses = [422]
    with pytest.raises(PostError, match="found status 422: the reason; needed 200 or 201"):
        post(PROFILE, service.url)
    assert pauses == []


def test_a_service_that_stays_broken_is_given_up(service: Service) -> None:
    service.statuses = [503]
    with pytest.raises(PostError, match="found status 503"):
        post(PROFILE, service.url)
    assert len(service.received) == 4


@pytest.mark.parametrize("url", ["http://127.0.0.1:9", "nowhere", "http://[::1"])
def test_a_service_that_is_not_there_is_named(url: str) -> None:
    with pytest.raises(PostError, match=r"/v1/profiles: found .*; needed a service that answers"):
        post(PROFILE, url)
