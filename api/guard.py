"""Guard: which requests get in, by their ``Host`` and their token, before a route sees them."""

from __future__ import annotations

import ipaddress
import socket

from sqlalchemy.exc import SQLAlchemyError
from starlette.datastructures import Headers
from starlette.types import ASGIApp, Message, Receive, Scope, Send

from api.answers import answer, answer_for_now
from api.database import Database
from api.refusal import ErrorDocument, Refusal, document
from api.settings import Settings
from api.tokens import Keyring, Token, Tokens, holder
from zbplan.errors import Finding, InvalidInputError

OPEN = frozenset({"/healthz", "/readyz"})
"""What anyone may ask, under any name of the host: probes carry no token and ask by address."""

READ_ONLY = frozenset({"/v1/validate", "/v1/compare"})
"""What a POST to leaves no trace of."""

REVOKED = "a token that was revoked meanwhile"

_END: Message = {"type": "http.response.body", "body": b"", "more_body": False}
"""What ends an answer whose length was not told."""

LOOPBACK = ("localhost", "127.0.0.1", "[::1]")


class Guard:
    """Lets requests through to the application, with ``caller`` in their state: the name of their token.

    Without tokens everyone gets in, if the service listens on loopback only or was told to be insecure.

    Parameters
    ----------
    app
        What is guarded; the state of the application holds a ``keyring``.
    settings
        The names of the host, and whether all may come in without a token.
    """

    def __init__(self, app: ASGIApp, settings: Settings) -> None:
        self._app = app
        self._hosts = allowed_hosts(settings)
        self._needs_token = not (settings.insecure or is_loopback(settings.host))

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Answer a request, or let it through."""
        if scope["type"] != "http" or scope["path"] in OPEN:
            return await self._app(scope, receive, send)
        try:
            headers = Headers(scope=scope)
            self._require_host(headers)
            token = await self._token(scope, headers)
        except Refusal as refusal:
            return await answer(refusal.document)(scope, receive, send)
        except SQLAlchemyError as error:
            return await answer_for_now(error)(scope, receive, send)
        scope.setdefault("state", {})["caller"] = None if token is None else token.name
        if token is None:
            return await self._app(scope, receive, send)
        return await self._serve_while_valid(token, scope, receive, send)

    async def _serve_while_valid(self, token: Token, scope: Scope, receive: Receive, send: Send) -> None:
        """Let a request through, and end it when its token is revoked: it may go on for long."""
        keyring: Keyring = scope["app"].state.keyring
        begun = False

        async def send_on(message: Message) -> None:
            nonlocal begun
            if message["type"] == "http.response.start":
                begun = True
                if any(name == b"content-length" for name, _ in message["headers"]):
                    keyring.no_longer_watch(stay)  # all of it is there, and cannot end early
            await send(message)

        try:
            async with keyring.stay(token) as stay:
                await self._app(scope, receive, send_on)
        except TimeoutError:
            if not stay.expired():
                raise
            await (send(_END) if begun else answer(_unauthorized(REVOKED))(scope, receive, send))

    def _require_host(self, headers: Headers) -> None:
        host = headers.get("host", "")
        if "*" in self._hosts or _without_port(host).lower() in self._hosts:
            return
        finding = Finding("Host", repr(host[:80]), f"one of {', '.join(self._hosts)}; ZBPLAN_ALLOWED_HOSTS adds names")
        raise Refusal(document("host", 421, "This is not the service that was asked for", str(finding), [finding]))

    async def _token(self, scope: Scope, headers: Headers) -> Token | None:
        tokens = await scope["app"].state.keyring.all()
        if not tokens and not self._needs_token:
            return None
        scheme, _, secret = headers.get("authorization", "").partition(" ")
        token = holder(tokens, secret.strip()) if scheme.lower() == "bearer" else None
        if token is None:
            raise Refusal(_unauthorized("a token that is not known" if secret else "no token"))
        _require_role(token, scope)
        return token


def require_protection(settings: Settings) -> None:
    """Refuse to listen where others can reach the service while nobody has a token; raises ``InvalidInputError``."""
    if settings.insecure or is_loopback(settings.host):
        return
    database = Database(settings.database_url)
    try:
        tokens = Tokens(database).list()
    finally:
        database.close()
    if not tokens:
        needed = "a token (`zbplan token add NAME --role write`), --host 127.0.0.1, or --insecure"
        raise InvalidInputError([Finding("host", f"{settings.host!r}, which others can reach, and no token", needed)])


def allowed_hosts(settings: Settings) -> tuple[str, ...]:
    """Return the names by which the service may be asked."""
    own = f"[{settings.host}]" if ":" in settings.host else settings.host
    return tuple(
        dict.fromkeys(name.lower() for name in (*LOOPBACK, own, socket.gethostname(), *settings.allowed_hosts))
    )


def is_loopback(host: str) -> bool:
    """Return whether only this machine can reach an address to listen on."""
    try:
        return ipaddress.ip_address(host).is_loopback
    except ValueError:
        return host == "localhost"


def only_reads(method: str, path: str) -> bool:
    """Return whether a request changes nothing."""
    return method in ("GET", "HEAD", "OPTIONS") or path in READ_ONLY


def _unauthorized(found: str) -> ErrorDocument:
    detail = f"found {found}; needed `Authorization: Bearer TOKEN`, as `zbplan token add` gives it"
    return document("unauthorized", 401, "A token is needed", detail)


def _require_role(token: Token, scope: Scope) -> None:
    if token.role != "write" and not only_reads(scope["method"], scope["path"]):
        detail = f"found the role {token.role!r} of token {token.name!r}; needed 'write' to change anything"
        raise Refusal(document("forbidden", 403, "The token does not allow it", detail))


def _without_port(host: str) -> str:
    name, _, port = host.rpartition(":")
    return name if port.isdigit() else host
