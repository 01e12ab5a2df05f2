"""HTTP load: prepared requests over many connections, with so little work per answer that the server is what counts."""

from __future__ import annotations

import asyncio
import time
from dataclasses import dataclass
from urllib.parse import urlsplit


@dataclass(frozen=True)
class Request:
    """A request as the bytes that are sent."""

    url: str
    method: str = "GET"
    path: str = "/"
    body: bytes = b""
    headers: tuple[str, ...] = ()

    @property
    def content(self) -> bytes:
        """What goes over the wire."""
        own = [f"Host: {urlsplit(self.url).netloc}", *self.headers]
        if self.body:
            own += ["Content-Type: application/json", f"Content-Length: {len(self.body)}"]
        return "\r\n".join([f"{self.method} {self.path} HTTP/1.1", *own, "", ""]).encode() + self.body


class Connection(asyncio.Protocol):
    """One connection, one request at a time."""

    def __init__(self) -> None:
        self._answer: asyncio.Future[tuple[int, int]] | None = None
        self._received = bytearray()
        self._transport: asyncio.Transport | None = None

    @classmethod
    async def open(cls, url: str) -> Connection:
        """Connect."""
        address = urlsplit(url)
        _, protocol = await asyncio.get_running_loop().create_connection(cls, address.hostname, address.port)
        return protocol

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        """Keep the way out."""
        assert isinstance(transport, asyncio.Transport)
        self._transport = transport

    def connection_lost(self, error: Exception | None) -> None:
        """Tell who waits."""
        if self._answer is not None and not self._answer.done():
            self._answer.set_exception(error or ConnectionResetError("closed before the answer"))

    async def ask(self, content: bytes) -> tuple[int, int]:
        """Send a request; return the status and the length of the body once all of it is here."""
        assert self._transport is not None
        self._answer = asyncio.get_running_loop().create_future()
        self._transport.write(content)
        return await self._answer

    def data_received(self, data: bytes) -> None:
        """Look whether the answer is complete."""
        self._received += data
        end = self._received.find(b"\r\n\r\n")
        if end < 0 or self._answer is None:
            return
        head = bytes(self._received[:end]).lower()
        status = int(head[9:12])
        place = head.find(b"content-length: ")
        length = int(head[place + 16 :].split(b"\r", 1)[0]) if place >= 0 else 0
        if len(self._received) >= end + 4 + length:
            self._received.clear()
            self._answer.set_result((status, length))

    def close(self) -> None:
        """Hang up."""
        assert self._transport is not None
        self._transport.close()


async def rate(request: Request, *, connections: int, seconds: float, status: int) -> float:
    """Return answers per second with so many connections that each ask again at once."""
    loop = asyncio.get_running_loop()
    opened = [await Connection.open(request.url) for _ in range(connections)]
    began = loop.time()

    async def work(connection: Connection) -> int:
        done, content = 0, request.content
        while loop.time() - began < seconds:
            found, _ = await connection.ask(content)
            assert found == status, f"found status {found}; needed {status}"
            done += 1
        return done

    answers = sum(await asyncio.gather(*map(work, opened)))
    took_s = loop.time() - began
    for connection in opened:
        connection.close()
    return answers / took_s


async def latencies_ms(request: Request, *, count: int, pause_s: float) -> list[float]:
    """Return how long each of a sequence of requests on one connection took."""
    connection, content, found = await Connection.open(request.url), request.content, []
    for _ in range(count):
        began = time.perf_counter()
        status, _ = await connection.ask(content)
        found.append(1e3 * (time.perf_counter() - began))
        assert status < 300, f"found status {status}"
        await asyncio.sleep(pause_s)
    connection.close()
    return found


async def crowd_s(request: Request, *, clients: int, within_s: float) -> float:
    """Return after how many seconds the last of many clients has its answer, each on a connection of its own.

    They start evenly spread over ``within_s``.
    """
    loop = asyncio.get_running_loop()
    began, content = loop.time(), request.content

    async def client(at: int) -> None:
        await asyncio.sleep(within_s * at / clients)
        connection = await Connection.open(request.url)
        status, length = await connection.ask(content)
        connection.close()
        assert (status, length > 0) == (200, True), f"found status {status} and {length} bytes"

    await asyncio.gather(*map(client, range(clients)))
    return loop.time() - began
