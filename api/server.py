"""Server: the application on a socket, from start to graceful stop."""

from __future__ import annotations

import resource
import signal
import socket
from types import FrameType
from typing import NoReturn

import uvicorn

from api.app import create_app
from api.database import require_database
from api.guard import require_protection
from api.logs import configure_logging
from api.settings import Settings


def serve(settings: Settings) -> None:
    """Serve until SIGINT or SIGTERM, then end every worker process and exit with status 0.

    Once requests are answered, prints ``zbplan: listening on http://HOST:PORT`` with the real port.

    Raises
    ------
    OSError
        If the address cannot be bound.
    InvalidInputError
        If the database cannot be used, or the address can be reached by others and nobody has a token.
    """
    configure_logging(settings.log_level)
    _allow_many_connections()
    for stop in (signal.SIGINT, signal.SIGTERM):
        signal.signal(stop, _exit)
    require_database(settings.database_url)
    require_protection(settings)
    with listening(settings.host, settings.port) as listener:
        config = uvicorn.Config(
            create_app(settings),
            access_log=False,
            log_config=None,
            timeout_graceful_shutdown=settings.grace_s,
            lifespan="on",
        )
        _Server(config).run(sockets=[listener])


class _Server(uvicorn.Server):
    """Says when it listens, and lets nobody wait for a plan while it stops."""

    async def startup(self, sockets: list[socket.socket] | None = None) -> None:
        await super().startup(sockets)
        for listener in sockets or []:
            host, port = listener.getsockname()[:2]
            name = f"[{host}]" if ":" in host else host
            print(f"zbplan: listening on http://{name}:{port}", flush=True)  # noqa: T201 - scripts read it

    async def shutdown(self, sockets: list[socket.socket] | None = None) -> None:
        self.config.app.state.service.close()  # type: ignore[union-attr]
        await super().shutdown(sockets)


def listening(host: str, port: int) -> socket.socket:
    """Return a bound TCP socket; raises ``OSError`` if the address cannot be bound."""
    # asyncio sends small answers without delay only on sockets that name TCP as their protocol.
    family, kind, protocol, _, address = socket.getaddrinfo(host, port, type=socket.SOCK_STREAM)[0]
    listener = socket.socket(family, kind, protocol)
    listener.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
    try:
        listener.bind(address)
    except OSError:
        listener.close()
        raise
    return listener


def _allow_many_connections() -> None:
    # A cluster that starts is thousands of clients at once, and the usual soft limit is 1024 open files.
    _, most = resource.getrlimit(resource.RLIMIT_NOFILE)
    resource.setrlimit(resource.RLIMIT_NOFILE, (most, most))


def _exit(_signal: int, _frame: FrameType | None) -> NoReturn:
    # uvicorn raises the signal that stopped it once more, after its graceful stop.
    raise SystemExit(0)
