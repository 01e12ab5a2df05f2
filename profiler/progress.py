"""How far a measurement is: a bar on the terminal where rich is installed, nothing elsewhere."""

from __future__ import annotations

import sys
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Protocol


class Progress(Protocol):
    """Is told of each step of a measurement."""

    def advance(self, what: str) -> None:
        """Note that a step begins."""


class Silent:
    """Shows nothing."""

    def advance(self, what: str) -> None:
        """Note that a step begins."""


@contextmanager
def bar(steps: int, *, show: bool) -> Iterator[Progress]:
    """Show a bar on stderr, if that is a terminal and rich is installed."""
    try:
        if not (show and sys.stderr.isatty()):
            raise ImportError
        from rich import progress
        from rich.console import Console
    except ImportError:
        yield Silent()
        return
    columns = (progress.TextColumn("{task.description}"), progress.BarColumn(), progress.TimeElapsedColumn())
    with progress.Progress(*columns, console=Console(stderr=True), transient=True) as shown:
        task = shown.add_task("measuring", total=steps)

        class Bar:
            def advance(self, what: str) -> None:
                shown.update(task, advance=1, description=what)

        yield Bar()
