"""Clock: the time by the database, which is the only clock that services on several machines share."""

from __future__ import annotations

from typing import Any

from sqlalchemy import Double
from sqlalchemy.ext.compiler import compiles
from sqlalchemy.sql.compiler import SQLCompiler
from sqlalchemy.sql.functions import FunctionElement


class EpochSeconds(FunctionElement[float]):
    """Seconds since 1970, with fractions."""

    type = Double()
    inherit_cache = True


@compiles(EpochSeconds, "sqlite")
def _sqlite(_element: EpochSeconds, _compiler: SQLCompiler, **_options: Any) -> str:
    return "((julianday('now') - 2440587.5) * 86400.0)"


@compiles(EpochSeconds, "postgresql")
def _postgresql(_element: EpochSeconds, _compiler: SQLCompiler, **_options: Any) -> str:
    return "CAST(extract(epoch FROM clock_timestamp()) AS double precision)"
