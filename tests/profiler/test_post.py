import threading
from collections.abc import Iterator
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer

import pytest

from profiler.errors import PostError
from profiler.post import post
from zbplan.profile import Profile

PROFILE = Profile.parse(
    {"stages": 1, "t_f_ms": 1, "t_b_ms": 1, "t_w_ms": 1, "t_comm_ms": 0, "m_b_bytes": 1, "m_w_bytes": 1}
)


class Service(ThreadingHTTPServer):
    """Keeps what is posted and answers with a status."""

    status = 201

    def __init__(self) -> None:
        super().__init__(("127.0.0.1", 0), Answer)
        self.received: list[tuple[str, str, bytes]] = []

    @property
    def url(self) -> str:
        return f"http://127.0.0.1:{self.server_port}"


class Answer(BaseHTTPRequestHandler):
    server: Service

    def do_POST(self) -> None:
        body = self.rfile.read(int(self.headers["content-length"]))
        self.server.received.append((self.path, self.headers["content-type"], body))
        self.send_response(self.server.status)
        self.end_headers()
        self.wfile.write(b"the reason")

    def log_message(self, *_: object) -> None:
        pass


@pytest.fixture
def service() -> Iterator[Service]:
    with Service() as server:
        thread = threading.Thread(target=server.serve_forever)
        thread.start()
        yield server
        server.shutdown()
        thread.join()


def test_a_profile_arrives_as_it_is(service: Service) -> None:
    post(PROFILE, service.url + "/")
    ((path, content_type, body),) = service.received
    assert (path, content_type) == ("/v1/profiles", "application/json")
    assert Profile.parse_json(body) == PROFILE


def test_a_refusal_is_told(service: Service) -> None:
    service.status = 422
    with pytest.raises(PostError, match="found status 422: the reason; needed 200 or 201"):
        post(PROFILE, service.url)


@pytest.mark.parametrize("url", ["http://127.0.0.1:9", "nowhere", "http://[::1"])
def test_a_service_that_is_not_there_is_named(url: str) -> None:
    with pytest.raises(PostError, match=r"/v1/profiles: found .*; needed a service that answers"):
        post(PROFILE, url)
