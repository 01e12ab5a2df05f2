"""The least that FastAPI can do: one route that returns the bytes of a file, and one that returns 304.

``python -m benchmarks.bare_route FILE`` serves on a free loopback port, which it prints.
"""

from __future__ import annotations

import sys
from pathlib import Path

import uvicorn
from fastapi import FastAPI, Response

from api.server import listening

app = FastAPI()
BODY = Path(sys.argv[1]).read_bytes() if len(sys.argv) > 1 else b""


@app.get("/body")
async def body() -> Response:
    """Return the bytes."""
    return Response(BODY, media_type="application/json")


@app.get("/unchanged")
async def unchanged() -> Response:
    """Say that nothing has changed."""
    return Response(status_code=304)


if __name__ == "__main__":
    with listening("127.0.0.1", 0) as listener:
        print(f"http://127.0.0.1:{listener.getsockname()[1]}", flush=True)
        uvicorn.Server(uvicorn.Config(app, access_log=False, log_level="warning")).run(sockets=[listener])
