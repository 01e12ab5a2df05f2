"""A real PostgreSQL server for tests, in a temporary folder, behind a socket in that folder."""

from __future__ import annotations

import os
import shutil
import signal
import subprocess
import tempfile
from collections.abc import Iterator
from contextlib import contextmanager
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


@contextmanager
def postgresql() -> Iterator[str]:
    """Run a server and yield the SQLAlchemy URL of its database."""
    initdb, postgres = program("initdb"), program("postgres")
    with tempfile.TemporaryDirectory(prefix="zbplan-", dir="/tmp") as name:
        folder = Path(name)
        if OWNER is not None:
            shutil.chown(folder, OWNER)
        data = folder / "data"
        make = [initdb, "--pgdata", data, "--auth", "trust", "--username", "zbplan", "--no-sync"]
        subprocess.run(make, check=True, user=OWNER, cwd="/", stdout=subprocess.DEVNULL, timeout=TIMEOUT_S)
        serve = [postgres, "-D", data, "-k", folder, "-c", "listen_addresses=", "-c", "fsync=off"]
        with (folder / "log.txt").open("w") as log:
            server = subprocess.Popen(serve, user=OWNER, cwd="/", stdout=log, stderr=log)
        try:
            wait_until(lambda: accepts(folder))
            yield f"postgresql+psycopg://zbplan@/postgres?host={quote(str(folder), safe='')}"
        finally:
            server.send_signal(signal.SIGINT)
            server.wait(TIMEOUT_S)


def accepts(folder: Path) -> bool:
    try:
        psycopg.connect(host=str(folder), user="zbplan", dbname="postgres").close()
    except psycopg.OperationalError:
        return False
    return True
