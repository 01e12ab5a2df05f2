"""Does the service stay out of a cluster's way? Rates beside a bare route, and answers while it solves.

``python -m benchmarks.service`` runs the service as ``zbplan serve`` does, on loopback and SQLite, prints a row per
claim and fails if one does not hold. The load comes from this process, on the same cores. Needs a quiet machine.
"""

from __future__ import annotations

import asyncio
import json
import math
import resource
import signal
import statistics
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import httpx

from benchmarks.claim import Claim, exit_status
from benchmarks.http_load import Request, crowd_s, latencies_ms, rate

ROOT = Path(__file__).parent.parent
PROFILE = {
    "stages": 8,
    "t_f_ms": 18.522,
    "t_b_ms": 18.086,
    "t_w_ms": 9.337,
    "t_comm_ms": 0.601,
    "m_b_bytes": 201216,
    "m_w_bytes": 73728,
}
FINISHED = {"profile": PROFILE, "devices": 8, "microbatches": 64, "memory_limit": "1x", "time_limit_s": 2}
LARGE = {**FINISHED, "profile": {**PROFILE, "stages": 16}, "devices": 16, "microbatches": 256, "method": "zb_h1"}
UNEVEN = {**PROFILE, "t_f_ms": [17, 18, 19, 20, 21, 22, 23, 24]}
LONG = {**FINISHED, "profile": UNEVEN, "memory_limit": "0.75x", "time_limit_s": 600}
"""Far from proven after minutes."""

CODINGS = ("identity", "gzip")
CONNECTIONS = 64
ROUNDS, ROUND_S = 5, 1.5
SAMPLES, PAUSE_S = 500, 0.01
CLIENTS, WITHIN_S = 5_000, 2.0


@contextmanager
def running(*command: str) -> Iterator[tuple[subprocess.Popen[str], str]]:
    """Run a server that prints its URL at the end of a line; yield it and the URL."""
    process = subprocess.Popen(
        [sys.executable, *command], cwd=ROOT, stdout=subprocess.PIPE, stderr=subprocess.DEVNULL, text=True
    )
    assert process.stdout is not None
    try:
        yield process, process.stdout.readline().split()[-1]
    finally:
        process.terminate()
        process.wait()
        process.stdout.close()


def post(url: str, problem: dict[str, object], wait_s: int = 0) -> httpx.Response:
    """Post a problem."""
    headers = {"Prefer": f"wait={wait_s}", "Accept-Encoding": "identity"}
    return httpx.post(f"{url}/v1/plans", json=problem, headers=headers, timeout=120, trust_env=False)


def finished(url: str, problem: dict[str, object]) -> str:
    """Return the key of a problem once its plan is final."""
    answer = post(url, problem, wait_s=60).json()
    assert answer["status"] == "done", answer
    key: str = answer["key"]
    return key


async def shares(of: Request, bare: Request, status: int) -> float:
    """Return the median share of the bare route's rate, taken in turns so that what else runs weighs on both."""
    found = []
    for _ in range(ROUNDS):
        own, least = [
            await rate(request, connections=CONNECTIONS, seconds=ROUND_S, status=status) for request in (of, bare)
        ]
        print(f"     {of.path[:16]}… {own:.0f}/s, {bare.path} {least:.0f}/s")
        found.append(own / least)
    return statistics.median(found)


def p99(values: list[float]) -> float:
    """Return the value that 1 % exceed."""
    return statistics.quantiles(values, n=100)[98]


def raw(url: str, key: str, coding: str) -> tuple[bytes, str]:
    """Return a plan as it goes over the wire, and its ETag."""
    headers = {"Accept-Encoding": coding}
    with httpx.stream("GET", f"{url}/v1/plans/{key}", headers=headers, trust_env=False) as answer:
        return b"".join(answer.iter_raw()), answer.headers["etag"]


async def reading(url: str, bare: str, keys: list[str], etag: str) -> list[Claim]:
    """Measure reads of a finished plan, and of a large one that is compressed."""
    path, large = (f"/v1/plans/{key}" for key in keys)
    whole = await shares(Request(url, path=path), Request(bare, path="/0"), 200)
    conditional = Request(url, path=path, headers=(f"If-None-Match: {etag}",))
    unchanged = await shares(conditional, Request(bare, path="/unchanged"), 304)
    compressed = Request(url, path=large, headers=("Accept-Encoding: gzip",))
    big = await shares(compressed, Request(bare, path="/1"), 200)
    return [
        Claim("GET of a finished plan / bare route", whole, most=math.inf, least=0.6),
        Claim("GET that finds nothing new / bare route", unchanged, most=math.inf, least=0.6),
        Claim("GET of a large plan, compressed / bare route", big, most=math.inf, least=0.6),
    ]


async def while_solving(url: str) -> list[Claim]:
    """Measure answers while a solve runs."""
    body = json.dumps(FINISHED).encode()
    posts = await latencies_ms(Request(url, "POST", "/v1/plans", body), count=SAMPLES, pause_s=PAUSE_S)
    alive = await latencies_ms(Request(url, path="/healthz"), count=SAMPLES, pause_s=PAUSE_S)
    fetch = Request(url, "POST", "/v1/plans", body, headers=("Prefer: wait=30", "Accept-Encoding: gzip"))
    crowd = await crowd_s(fetch, clients=CLIENTS, within_s=WITHIN_S)
    return [
        Claim("p99 of POST of a stored problem during a solve, ms", p99(posts), most=25),
        Claim("p99 of /healthz during a solve, ms", p99(alive), most=20),
        Claim(f"seconds until {CLIENTS} clients that start within {WITHIN_S:g} s have the plan", crowd, most=15),
    ]


def claims(folder: Path) -> list[Claim]:
    """Run everything against one service."""
    database = f"sqlite:///{folder / 'plans.sqlite3'}"
    serve = ("-c", "from zbplan.cli import main; main()", "serve", "--port", "0", "--database-url", database)
    with running(*serve) as (process, url):
        keys = [finished(url, problem) for problem in (FINISHED, LARGE)]
        (plain, etag), (compressed, _) = (raw(url, key, coding) for key, coding in zip(keys, CODINGS, strict=True))
        for name, content in (("plain", plain), ("compressed", compressed)):
            (folder / name).write_bytes(content)
        with running("-m", "benchmarks.bare_route", str(folder / "plain"), str(folder / "compressed")) as (_, bare):
            made = asyncio.run(reading(url, bare, keys, etag))
        key = post(url, LONG).json()["key"]
        while (status := httpx.get(f"{url}/v1/plans/{key}", trust_env=False).json()["status"]) != "solving":
            assert status == "queued", status
            time.sleep(0.05)
        made += asyncio.run(while_solving(url))
        began = time.perf_counter()
        process.send_signal(signal.SIGTERM)
        process.wait()
        stop_s = time.perf_counter() - began
    return [*made, Claim("seconds to stop with a 10-minute solve running", stop_s, most=10)]


def main() -> int:
    """Print all claims; return 1 if one does not hold."""
    _, most = resource.getrlimit(resource.RLIMIT_NOFILE)
    resource.setrlimit(resource.RLIMIT_NOFILE, (most, most))
    with tempfile.TemporaryDirectory() as folder:
        return exit_status(claims(Path(folder)))


if __name__ == "__main__":
    sys.exit(main())
