"""What asks the store: while some wait for a lock of it, everyone else is served, and nobody waits for ever."""

from __future__ import annotations

import sqlite3
from concurrent.futures import ThreadPoolExecutor
from contextlib import closing
from pathlib import Path

from tests.api.servers import problem, running, wait_until

MANY = 40
"""More than asyncio has threads by itself."""


def test_readers_do_not_wait_for_those_who_wait_to_write(tmp_path: Path) -> None:
    with running(tmp_path) as server, ThreadPoolExecutor(MANY) as crowd, server.client() as client:
        done = server.post(problem(), wait_s=30).json()["key"]
        held = server.begin(problem("held"))
        with closing(sqlite3.connect(server.database, isolation_level=None)) as other:
            other.execute("BEGIN IMMEDIATE")
            stops = [crowd.submit(client.delete, f"/v1/plans/{held}") for _ in range(MANY)]
            wait_until(lambda: all(stop.running() for stop in stops))
            for path in 20 * (f"/v1/plans/{done}", "/v1/plans"):
                assert server.get(path).status_code == 200
            assert not any(stop.done() for stop in stops)
            other.execute("ROLLBACK")
        assert {stop.result().json()["status"] for stop in stops} == {"cancelled"}
