"""Settings: what an operator may choose about a service, in the environment or on the command line."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import Annotated, Any, Literal, Self

from pydantic import Field, field_validator, model_validator
from pydantic_settings import BaseSettings, NoDecode, SettingsConfigDict

from api.machine import cores, memory_bytes
from zbplan.errors import Finding, InvalidInputError
from zbplan.record import Record, refuse

PREFIX = "ZBPLAN_"


def _half_of_the_cores() -> int:
    return max(1, cores() // 2)


class Settings(BaseSettings, Record):
    """How one service runs; what is not given is read from the environment (``ZBPLAN_PORT``, …).

    Each is described below it; ``zbplan serve --help`` lists them with these words.
    """

    model_config = SettingsConfigDict(
        env_prefix=PREFIX, frozen=True, strict=False, extra="forbid", use_attribute_docstrings=True
    )

    host: str = "127.0.0.1"
    """Address to listen on."""
    port: Annotated[int, Field(ge=0, le=65535)] = 8642
    """Port to listen on; 0 takes a free one."""
    insecure: bool = False
    """Lets everyone in without a token, even from other machines."""
    allowed_hosts: Annotated[tuple[str, ...], NoDecode] = ()
    """Names by which clients ask for this service, apart by commas; * allows any."""
    log_level: Literal["debug", "info", "warning", "error"] = "info"
    """What is logged from; debug has reads that succeed, too."""
    database_url: str = "sqlite:///zbplan.sqlite3"
    """SQLAlchemy URL of the store; several processes open it, so it can be no database in memory."""
    solve: str = "solver:solve"
    """Import path of the solver, a function with the signature of solver.solve."""
    solving: Literal["local", "workers"] = "local"
    """Who solves: local, processes of this service; workers, any zbplan worker on the same PostgreSQL."""
    solver_workers: Annotated[int, Field(ge=1)] = Field(default_factory=_half_of_the_cores)
    """Processes that solve, each one problem at a time."""
    desk_workers: Annotated[int, Field(ge=1)] = 1
    """Processes for what takes milliseconds to seconds: constructive plans; as many others judge and compare."""
    desk_limit_s: Annotated[float, Field(gt=0)] = 60.0
    """How long one of these may take."""
    overtime_s: Annotated[float, Field(ge=0)] = 30.0
    """How long past its time_limit_s a solve may run before its worker is killed."""
    solver_memory_bytes: Annotated[int, Field(ge=1 << 28)] | None = None
    """How much memory a solver process may have; if none is given, its share of three quarters of all that there is."""
    lease_s: Annotated[float, Field(gt=0)] = 15.0
    """How long after the last sign of life of a service or worker its solves are taken up by another."""
    near_plans: Annotated[int, Field(ge=0)] = 3
    """How many plans of nearly equal problems are tried on a new one; 0 tries none."""
    retry_after_s: Annotated[float, Field(ge=0)] = 60.0
    """How long a failed problem stays failed before a POST takes it up again."""
    grace_s: Annotated[int, Field(ge=0)] = 5
    """How long a stopping service waits for answers under way."""
    max_body_bytes: Annotated[int, Field(ge=1)] = 8 << 20
    """How long a request's body may be."""
    max_body_s: Annotated[float, Field(gt=0)] = 30.0
    """How long a request's body may take to come in."""
    max_bodies_bytes: Annotated[int, Field(ge=1)] = 256 << 20
    """How much all bodies may hold that come in at once; others try again."""
    max_devices: Annotated[int, Field(ge=1)] = 512
    """How many devices a problem may have."""
    max_ops: Annotated[int, Field(ge=1)] = 250_000
    """How many ops a problem may have: 3 × stages × microbatches."""
    max_time_limit_s: Annotated[float, Field(gt=0)] = 600.0
    """How long a solve may be asked to take."""
    max_cells: Annotated[int, Field(ge=1)] = 200
    """How many cells a sweep may have."""
    max_wait_s: Annotated[int, Field(ge=0)] = 60
    """How long an answer is held for Prefer: wait=N."""
    max_waiting: Annotated[int, Field(ge=0)] = 64
    """How many requests may wait for a first plan at once, and how many to judge and compare; others try again."""
    max_listeners: Annotated[int, Field(ge=0)] = 1000
    """How many may follow events at once."""
    max_jobs: Annotated[int, Field(ge=0)] = 1000
    """How many problems may wait or be solved at once; others are turned away for a while."""
    max_jobs_per_token: Annotated[int, Field(ge=0)] = 250
    """How many of these one token may have posted."""

    @field_validator("allowed_hosts", mode="before")
    @classmethod
    def _apart(cls, hosts: object) -> object:
        return tuple(filter(None, (name.strip() for name in hosts.split(",")))) if isinstance(hosts, str) else hosts

    @model_validator(mode="after")
    def _workers_share_the_database(self) -> Self:
        if self.solving == "workers" and not self.on_postgresql:
            found = f"a URL that begins with {self.database_url.partition(':')[0]}:"
            refuse([Finding(".database_url", found, "postgresql+psycopg://…, which workers share, or solving: local")])
        return self

    @property
    def on_postgresql(self) -> bool:
        """Whether the store is one that workers can share, and that tells of changes."""
        return self.database_url.startswith("postgresql+psycopg:")

    @property
    def threads_per_solver(self) -> int:
        """How many threads a solve may use, so that all solver processes together use the cores."""
        return max(1, cores() // self.solver_workers)

    @property
    def memory_per_solver_bytes(self) -> int:
        """How much memory a solver process may have."""
        return self.solver_memory_bytes or memory_bytes() * 3 // 4 // self.solver_workers

    @classmethod
    def parse(cls, data: object) -> Self:
        """Check what was chosen, completed from the environment.

        Raises
        ------
        InvalidInputError
            Naming each setting that is wrong: ``$.port`` where it was given, ``ZBPLAN_PORT`` where it was set.
        """
        try:
            return super().parse(data)
        except InvalidInputError as error:
            given = data if isinstance(data, Mapping) else {}
            raise InvalidInputError([_named(finding, given) for finding in error.findings]) from None

    @classmethod
    def listing(cls) -> Iterator[tuple[str, str, str]]:
        """Yield each setting as a variable of the environment, with its default and what it is for."""
        for name, field in cls.model_fields.items():
            default = field.get_default(call_default_factory=True, validated_data={})
            yield f"{PREFIX}{name.upper()}", _shown(default), field.description or ""


def _named(finding: Finding, given: Mapping[str, Any]) -> Finding:
    name = finding.path.removeprefix("$.").partition(".")[0].partition("[")[0]
    if name in given or name not in Settings.model_fields:
        return finding
    return Finding(f"{PREFIX}{name.upper()}", finding.found, finding.needed)


def _shown(default: object) -> str:
    if isinstance(default, tuple):
        return ",".join(default)
    return str(default).lower() if isinstance(default, bool) else str(default)
