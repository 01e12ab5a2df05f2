"""A real PostgreSQL server for tests, in a temporary folder, behind a socket in that folder."""

from __future__ import annotations

import os
import shutil
import signal
import subprocess
import tempfile
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path
from urllib.parse import quote

import psycopg
import pytest

from tests.api.servers import TIMEOUT_S, wait_until

OWNER = "postgres" if os.geteuid() == 0 else None
"""PostgreSQL does not run as root."""


def program(name: str) -> str:
    """Return the path of one of PostgreSQL's programs; skip the test where it is not installed."""
    installed = sorted(Path("/usr/lib/postgresql").glob(f"*/bin/{name}"))
    found = shutil.which(name) or (str(installed[-1]) if installed else None)
    if found is None:
        pytest.skip(f"PostgreSQL is not installed: there is no {name}")
    return found


class PostgreSQL:
    """A server that can be stopped and started."""

    def __init__(self, folder: Path) -> None:
        self._folder = folder
        self._server: subprocess.Popen[bytes] | None = None
        make = [program("initdb"), "--pgdata", folder / "data", "--auth", "trust", "--username", "zbplan", "--no-sync"]
        subprocess.run(make, check=True, user=OWNER, cwd="/", stdout=subprocess.DEVNULL, timeout=TIMEOUT_S)

    @property
    def url(self) -> str:
        """The SQLAlchemy URL of its database."""
        return f"postgresql+psycopg://zbplan@/postgres?host={quote(str(self._folder), safe='')}"

    def start(self) -> None:
        serve = [program("postgres"), "-D", self._folder / "data", "-k", self._folder]
        with (self._folder / "log.txt").open("a") as log:
            self._server = subprocess.Popen(
                [*serve, "-c", "listen_addresses=", "-c", "fsync=off"], user=OWNER, cwd="/", stdout=log, stderr=log
            )
        wait_until(lambda: accepts(self._folder))

    def read_only(self, only: bool) -> None:
        """Let new connections write or not, as after a failover, and end all others."""
        with psycopg.connect(host=str(self._folder), user="zbplan", dbname="postgres", autocommit=True) as connection:
            connection.execute("SET default_transaction_read_only = off")
            connection.execute(f"ALTER DATABASE postgres SET default_transaction_read_only = {only}")
            connection.execute(
                "SELECT pg_terminate_backend(pid) FROM pg_stat_activity "
                "WHERE backend_type = 'client backend' AND pid <> pg_backend_pid()"
            )

    def freeze(self) -> None:
        """Let it answer nobody, while connections to it stay and can be made."""
        self._signal(signal.SIGSTOP)

    def thaw(self) -> None:
        """Let it go on."""
        self._signal(signal.SIGCONT)

    def _signal(self, what: signal.Signals) -> None:
        assert self._server is not None
        self._server.send_signal(what)
        children = Path(f"/proc/{self._server.pid}/task/{self._server.pid}/children").read_text()
        for child in map(int, children.split()):
            with suppress(ProcessLookupError):
                os.kill(child, what)

    def stop(self) -> None:
        """End every connection and the server."""
        if self._server is not None and self._server.poll() is None:
            self.thaw()
            self._server.send_signal(signal.SIGINT)
            self._server.wait(TIMEOUT_S)


@contextmanager
def postgresql() -> Iterator[PostgreSQL]:
    """Run a server."""
    with tempfile.TemporaryDirectory(prefix="zbplan-", dir="/tmp") as name:
        folder = Path(name)
        if OWNER is not None:
            shutil.chown(folder, OWNER)
        server = PostgreSQL(folder)
        try:
            server.start()
            yield server
        finally:
            server.stop()


def accepts(folder: Path) -> bool:
    try:
        psycopg.connect(host=str(folder), user="zbplan", dbname="postgres").close()
    except psycopg.OperationalError:
        return False
    return True
