"""Printing what is drawn."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from typing import TYPE_CHECKING

import typer

if TYPE_CHECKING:
    from rich.console import Console


@contextmanager
def printed(width: int | None = None) -> Iterator[Console]:
    """Print what is drawn on a console; the console itself would end the process at a closed pipe."""
    from rich.console import Console

    console = Console(width=width, highlight=False)
    with console.capture() as capture:
        yield console
    typer.echo(capture.get(), nl=False, color=console.is_terminal)
