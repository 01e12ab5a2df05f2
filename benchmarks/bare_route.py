"""The least that FastAPI can do: routes that return the bytes of files, and one that returns 304.

``python -m benchmarks.bare_route FILE...`` serves ``/0``, ``/1``, … on a free loopback port, which it prints.
"""

from __future__ import annotations

import sys
from pathlib import Path

import uvicorn
from fastapi import FastAPI, Response

from api.server import listening

app = FastAPI()


def add_body(path: str, content: bytes) -> None:
    """Add a route that returns bytes."""

    @app.get(path)
    async def body() -> Response:
        return Response(content, media_type="application/json")


@app.get("/unchanged")
async def unchanged() -> Response:
    """Say that nothing has changed."""
    return Response(status_code=304)


if __name__ == "__main__":
    for at, file in enumerate(sys.argv[1:]):
        add_body(f"/{at}", Path(file).read_bytes())
    with listening("127.0.0.1", 0) as listener:
        print(f"http://127.0.0.1:{listener.getsockname()[1]}", flush=True)
        uvicorn.Server(uvicorn.Config(app, access_log=False, log_level="warning")).run(sockets=[listener])
