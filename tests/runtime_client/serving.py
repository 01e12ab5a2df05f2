"""A service on a real socket that gives prepared answers."""

from __future__ import annotations

import json
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import Any

from zbplan.plan import Plan

Answer = tuple[int, str]


class Service:
    """Gives its answers in turn, the last one for ever, and keeps what it was asked: method, path and body, and
    each time which bearer token."""

    def __init__(self, answers: list[Answer]) -> None:
        self.asked: list[tuple[str, str, bytes]] = []
        self.tokens: list[str | None] = []
        service = self

        class Handler(BaseHTTPRequestHandler):
            def _answer(self) -> None:
                body = self.rfile.read(int(self.headers.get("content-length", 0)))
                service.asked.append((self.command, self.path, body))
                service.tokens.append(self.headers.get("authorization"))
                status, text = answers[min(len(service.asked), len(answers)) - 1]
                self.send_response(status)
                self.send_header("content-length", str(len(text.encode())))
                self.end_headers()
                self.wfile.write(text.encode())

            do_GET = do_POST = _answer  # noqa: N815

            def log_message(self, *arguments: Any) -> None:
                """Stay silent."""

        self.server = ThreadingHTTPServer(("127.0.0.1", 0), Handler)
        self.url = f"http://127.0.0.1:{self.server.server_port}"


@contextmanager
def serving(*answers: Answer) -> Iterator[Service]:
    """Serve prepared answers until the block ends."""
    service = Service(list(answers))
    thread = threading.Thread(target=service.server.serve_forever, kwargs={"poll_interval": 0.05})
    thread.start()
    try:
        yield service
    finally:
        service.server.shutdown()
        service.server.server_close()
        thread.join()


@contextmanager
def dripping() -> Iterator[str]:
    """Give the URL of a server that answers every request with a byte now and then, until the block ends."""
    over = threading.Event()

    class Handler(BaseHTTPRequestHandler):
        def _answer(self) -> None:
            self.wfile.write(b"HTTP/1.1 200 OK\r\nx-slow: ")
            while not over.wait(0.05):
                self.wfile.write(b"x")

        do_GET = do_POST = _answer  # noqa: N815

        def log_message(self, *arguments: Any) -> None:
            """Stay silent."""

    server = ThreadingHTTPServer(("127.0.0.1", 0), Handler)
    thread = threading.Thread(target=server.serve_forever, kwargs={"poll_interval": 0.05})
    thread.start()
    try:
        yield f"http://127.0.0.1:{server.server_port}"
    finally:
        over.set()
        server.shutdown()
        server.server_close()
        thread.join()


def answer(status: str, plan: Plan | None = None, error: dict[str, Any] | None = None) -> Answer:
    """Return what the service answers about a plan."""
    body = {"key": "", "status": status, "plan": plan and json.loads(plan.to_json()), "error": error}
    return 202 if status in ("queued", "solving") else 200, json.dumps(body)
