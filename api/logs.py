"""Logs: one JSON object a line on stderr, with the id of the request that it belongs to."""

from __future__ import annotations

import logging
import sys
from collections.abc import Sequence

import structlog
from structlog.typing import Processor

_ALWAYS: Sequence[Processor] = (
    structlog.contextvars.merge_contextvars,
    structlog.stdlib.add_log_level,
    structlog.stdlib.add_logger_name,
    structlog.stdlib.ExtraAdder(),
    structlog.stdlib.PositionalArgumentsFormatter(),
    structlog.processors.TimeStamper(fmt="iso", utc=True),
    structlog.processors.format_exc_info,
)


def configure_logging(level: str | int) -> None:
    """Send what this process logs to stderr, from a level on."""
    last: list[Processor] = [
        structlog.stdlib.ProcessorFormatter.remove_processors_meta,
        structlog.processors.JSONRenderer(sort_keys=True, ensure_ascii=True),
    ]
    handler = logging.StreamHandler(sys.stderr)
    handler.setFormatter(structlog.stdlib.ProcessorFormatter(processors=last, foreign_pre_chain=_ALWAYS))
    logging.basicConfig(handlers=[handler], level=level.upper() if isinstance(level, str) else level, force=True)
    logging.getLogger("alembic").setLevel(logging.WARNING)  # it tells of every connection that it looks at
