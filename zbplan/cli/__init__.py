"""The ``zbplan`` command: every part of the project from a shell, one module per command.

Exit status 0; 1 when the answer is no (invalid or infeasible); 2 for bad usage or input. What is wrong goes to stderr,
one line each: file, JSON path, what was found, what is needed. The other packages are imported inside the commands
that use them, so that each runs with what it needs and says what to install where that is missing.
"""

from importlib import import_module

from zbplan.cli.application import EXTRAS, app, main

__all__ = ["EXTRAS", "app", "main"]

COMMANDS = (
    "plan",
    "validate",
    "show",
    "compare",
    "export",
    "trace",
    "serve",
    "worker",
    "token",
    "profile",
    "estimate",
    "partition",
    "fetch",
)
"""The modules that each add a command to ``app``, in the order in which the help lists them."""

for _command in COMMANDS:
    import_module(f"zbplan.cli.{_command}")
