"""What all commands share: the application, and how errors become lines on stderr and an exit status."""

from __future__ import annotations

import os
import signal
import sys
import threading
import traceback
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

from zbplan.errors import DeadlockError, InfeasibleError, InvalidPlanError, MethodError, ZbplanError

NO, BAD_INPUT, BUG, INTERRUPTED, CLOSED_PIPE = 1, 2, 70, 130, 141

AGAIN_S = 0.1
"""Seconds after which a Ctrl-C that could not be raised comes again."""

EXTRAS = {
    "solver": ("highspy", "networkx", "numba", "ortools", "pulp", "rich", "typer"),
    "service": (
        "alembic",
        "fastapi",
        "pebble",
        "prometheus_client",
        "pydantic_settings",
        "sqlalchemy",
        "structlog",
        "uvicorn",
        "zstandard",
    ),
    "cluster": ("procrastinate", "psycopg"),
    "torch": ("torch",),
    "plot": ("matplotlib",),
}
"""The modules that each extra brings."""


def say(text: str) -> None:
    """Tell the user something beside the answer, on stderr."""
    for line in text.splitlines():
        print(f"zbplan: {line}", file=sys.stderr)  # noqa: T201


def _missing(error: ModuleNotFoundError) -> str:
    """Say which extra brings a missing module; a module that none brings is not the user's to install."""
    module = (error.name or "").partition(".")[0]
    extra = next((extra for extra, modules in EXTRAS.items() if module in modules), None)
    if extra is None:
        raise error
    return f"found no module {module!r}; needed for this command: pip install 'zbplan[{extra}]'"


try:
    import typer
    from typer.core import TyperGroup
except ModuleNotFoundError as absent:
    say(_missing(absent))
    sys.exit(BAD_INPUT)


class _Commands(TyperGroup):
    """The commands, whose errors become lines on stderr and an exit status; they can print any text."""

    def main(self, *args: Any, **kwargs: Any) -> Any:
        for stream in (sys.stdout, sys.stderr):
            stream.reconfigure(errors="backslashreplace")  # type: ignore[union-attr]
        return super().main(*args, **kwargs)

    def invoke(self, ctx: Any) -> Any:
        with _exit_status():
            return super().invoke(ctx)


@contextmanager
def _exit_status() -> Iterator[None]:
    try:
        yield
        sys.stdout.flush()
    except ZbplanError as error:
        say(str(error))
        answered = isinstance(error, InfeasibleError | InvalidPlanError | MethodError | DeadlockError)
        raise typer.Exit(NO if answered else BAD_INPUT) from None
    except ModuleNotFoundError as error:
        say(_missing(error))
        raise typer.Exit(BAD_INPUT) from None
    except KeyboardInterrupt:
        raise _interrupted() from None
    except BrokenPipeError:
        # Python flushes standard output once more at its end.
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
        raise typer.Exit(CLOSED_PIPE) from None
    except OSError as error:
        say(str(error))
        raise typer.Exit(BAD_INPUT) from None
    except SystemError as error:
        if not _comes_from_interrupt(error):
            raise
        raise _interrupted() from None


def _interrupted() -> typer.Exit:
    say("interrupted")
    sys.unraisablehook = lambda unraisable: None  # what was cut short may complain while it is cleaned up
    return typer.Exit(INTERRUPTED)


def _comes_from_interrupt(error: BaseException | None) -> bool:
    """Return whether an error is what compiled code made of a Ctrl-C."""
    while error is not None and not isinstance(error, KeyboardInterrupt):
        error = error.__cause__
    return error is not None


def _interrupt_again(unraisable: Any) -> None:
    """Let a Ctrl-C that came where nothing can be raised, as in a compiler's callback, come again a moment later."""
    if unraisable.exc_type is not KeyboardInterrupt:
        sys.__unraisablehook__(unraisable)
        return
    main_thread = threading.main_thread().ident
    again = threading.Timer(AGAIN_S, signal.pthread_kill, (main_thread, signal.SIGINT))
    again.daemon = True
    again.start()


app = typer.Typer(
    name="zbplan",
    cls=_Commands,
    help="Plan zero-bubble pipeline-parallel training, and prove how far from optimal a plan can be.",
    epilog="Exit status: 0; 1 when the answer is no (invalid or infeasible); 2 for bad usage or input.",
    context_settings={"help_option_names": ["--help", "-h"]},
    no_args_is_help=True,
    add_completion=False,
    rich_markup_mode=None,
    pretty_exceptions_enable=False,
)


DELEGATED: dict[str, Any] = {
    "context_settings": {"allow_extra_args": True, "ignore_unknown_options": True, "help_option_names": []},
    "add_help_option": False,
}
"""For a command that hands its arguments to a command line of its own, which runs where typer is not installed."""


def _open_stream(stream: Any, descriptor: int) -> Any:
    """Return a standard stream; the null device for one that was closed."""
    if stream is None:
        # Else the next file that is opened would get the number, and what others print there.
        os.dup2(os.open(os.devnull, os.O_WRONLY), descriptor)
        stream = open(descriptor, "w", encoding="utf-8", closefd=False)  # noqa: SIM115 - lives as long as the process
    return stream


def main() -> None:
    """Run the command line and exit with its status."""
    sys.stdout = _open_stream(sys.stdout, 1)
    sys.stderr = _open_stream(sys.stderr, 2)
    sys.unraisablehook = _interrupt_again
    try:
        app()
    except Exception:
        # Python's own status for it is 1, which here is an answer.
        traceback.print_exc()
        sys.exit(BUG)


def example(*lines: str) -> str:
    """Return the epilog that shows how a command is called."""
    return "\n".join(["\b", "Example:", *(f"  {line}" for line in lines)])
