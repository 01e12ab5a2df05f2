"""Settings: what an operator may choose about a service."""

from __future__ import annotations

import os
from typing import Annotated

from pydantic import Field

from zbplan.record import Record


def _half_of_the_cores() -> int:
    return max(1, len(os.sched_getaffinity(0)) // 2)


class Settings(Record):
    """How one service runs.

    Attributes
    ----------
    host, port
        Where to listen; port 0 takes a free one.
    database_url
        SQLAlchemy URL of the store; worker processes open it too, so it can be no database in memory.
    solve
        Import path of the solver, a function with the signature of ``solver.solve``.
    solver_workers
        Processes that solve, each one problem at a time.
    desk_workers
        Processes for what takes milliseconds to seconds: reading problems, constructive plans, judging stored plans.
    desk_limit_s
        How long one of these may take.
    overtime_s
        How long past its ``time_limit_s`` a solve may run before its worker is killed.
    retry_after_s
        How long a failed problem stays failed before a POST takes it up again.
    grace_s
        How long a stopping service waits for answers under way.
    max_body_bytes, max_devices, max_ops, max_time_limit_s, max_wait_s
        What a request may ask for.
    max_listeners
        How many may follow events at once.
    """

    host: str = "127.0.0.1"
    port: Annotated[int, Field(ge=0, le=65535)] = 8642
    database_url: str = "sqlite:///zbplan.sqlite3"
    solve: str = "solver:solve"
    solver_workers: Annotated[int, Field(ge=1)] = Field(default_factory=_half_of_the_cores)
    desk_workers: Annotated[int, Field(ge=1)] = 1
    desk_limit_s: Annotated[float, Field(gt=0)] = 60.0
    overtime_s: Annotated[float, Field(ge=0)] = 30.0
    retry_after_s: Annotated[float, Field(ge=0)] = 60.0
    grace_s: Annotated[int, Field(ge=0)] = 5
    max_body_bytes: Annotated[int, Field(ge=1)] = 8 << 20
    max_devices: Annotated[int, Field(ge=1)] = 512
    max_ops: Annotated[int, Field(ge=1)] = 250_000
    max_time_limit_s: Annotated[float, Field(gt=0)] = 600.0
    max_listeners: Annotated[int, Field(ge=0)] = 1000
    max_wait_s: Annotated[int, Field(ge=0)] = 60
