"""Health: for those who watch over the process."""

from __future__ import annotations

from fastapi import APIRouter

router = APIRouter()


@router.get("/healthz", summary="Whether the process is alive")
async def alive() -> dict[str, str]:
    """Answer."""
    return {"status": "ok"}
