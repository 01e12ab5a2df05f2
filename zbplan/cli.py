"""The ``zbplan`` command: every part of the project from a shell.

Exit status 0; 1 when the answer is no (invalid or infeasible); 2 for bad usage or input. What is wrong goes to stderr,
one line each: file, JSON path, what was found, what is needed. The other packages are imported inside the commands
that use them, so that each runs with what it needs and says what to install where that is missing.
"""

from __future__ import annotations

import json
import os
import sys
import time
import traceback
import warnings
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import replace
from typing import TYPE_CHECKING, Annotated, Any, TypeVar

from zbplan import files
from zbplan.errors import (
    DeadlockError,
    Finding,
    InfeasibleError,
    InvalidInputError,
    InvalidPlanError,
    MethodError,
    ZbplanError,
)

if TYPE_CHECKING:
    from rich.console import Console

    from heuristic import Built, Refused
    from zbplan.draw.comparison import Row
    from zbplan.plan import Bound, Plan
    from zbplan.problem import Problem
    from zbplan.record import Record

    AnyRecord = TypeVar("AnyRecord", bound=Record)

NO, BAD_INPUT, BUG, INTERRUPTED, CLOSED_PIPE = 1, 2, 70, 130, 141

EXTRAS = {
    "solver": ("highspy", "networkx", "numba", "ortools", "pulp", "rich", "typer"),
    "service": ("fastapi", "pebble", "sqlalchemy", "uvicorn"),
    "cluster": ("psycopg",),
    "torch": ("torch",),
    "plot": ("matplotlib",),
}
"""The modules that each extra brings."""


def _say(text: str) -> None:
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
    _say(_missing(absent))
    sys.exit(BAD_INPUT)


class _Commands(TyperGroup):
    """The commands, whose errors become lines on stderr and an exit status."""

    def invoke(self, ctx: Any) -> Any:
        with _exit_status():
            return super().invoke(ctx)


@contextmanager
def _exit_status() -> Iterator[None]:
    try:
        yield
        sys.stdout.flush()
    except ZbplanError as error:
        _say(str(error))
        answered = isinstance(error, InfeasibleError | InvalidPlanError | MethodError | DeadlockError)
        raise typer.Exit(NO if answered else BAD_INPUT) from None
    except ModuleNotFoundError as error:
        _say(_missing(error))
        raise typer.Exit(BAD_INPUT) from None
    except KeyboardInterrupt:
        _say("interrupted")
        raise typer.Exit(INTERRUPTED) from None
    except BrokenPipeError:
        # Python flushes standard output once more at its end.
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
        raise typer.Exit(CLOSED_PIPE) from None
    except OSError as error:
        _say(str(error))
        raise typer.Exit(BAD_INPUT) from None


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


def main() -> None:
    """Run the command line and exit with its status."""
    for stream in (sys.stdout, sys.stderr):
        stream.reconfigure(errors="backslashreplace")  # type: ignore[union-attr]
    try:
        app()
    except Exception:
        # Python's own status for it is 1, which here is an answer.
        traceback.print_exc()
        sys.exit(BUG)


def _example(*lines: str) -> str:
    return "\n".join(["\b", "Example:", *(f"  {line}" for line in lines)])


ProblemFile = Annotated[str, typer.Argument(metavar="PROBLEM.json", help="What to plan; - reads standard input.")]
PlanFile = Annotated[str, typer.Argument(metavar="PLAN.json", help="The plan; - reads standard input.")]
Output = Annotated[
    str, typer.Option("--output", "-o", metavar="PLAN.json", help="Where to write it; - is standard output.")
]


@app.command(epilog=_example("zbplan plan problem.json -o plan.json"))
def plan(problem: ProblemFile, output: Output = files.STANDARD) -> None:
    """Find the best plan for a problem, with a proven bound."""
    from solver import solve

    asked = _read_problem(problem)
    files.check_writable(output)
    _deliver(solve(asked), output)


@app.command(epilog=_example("zbplan validate plan.json"))
def validate(plan: PlanFile) -> None:
    """Say every way in which a plan is wrong.

    The exit status is 1 if there is one.
    """
    from zbplan.plan import Plan
    from zbplan.validate import validate as violations_of

    found = _read(Plan, plan)
    violations = violations_of(found)
    for violation in violations:
        _say(f"{plan} {violation}")
    if violations:
        raise typer.Exit(NO)
    typer.echo(f"{plan}: legal; {_summary(found)}")


@app.command(epilog=_example("zbplan show plan.json --critical-path", "zbplan show plan.json --to-ms 250 --width 160"))
def show(
    plan: PlanFile,
    critical_path: Annotated[bool, typer.Option("--critical-path", help="List why it takes so long.")] = False,
    from_ms: Annotated[float | None, typer.Option(help="Draw from this time on.")] = None,
    to_ms: Annotated[float | None, typer.Option(help="Draw up to this time.")] = None,
    width: Annotated[int | None, typer.Option(min=60, max=1000, help="Columns to draw on.")] = None,
) -> None:
    """Draw a plan as a Gantt chart.

    Devices are rows; beside each stand its memory peak and the share of the iteration that it is idle.
    """
    from zbplan.draw.terminal import chart
    from zbplan.draw.waits import waits
    from zbplan.plan import Plan
    from zbplan.validate import check

    found = check(_read(Plan, plan))
    _require_stretch(found, from_ms, to_ms)
    with _printed(width) as console:
        for line in chart(found, width=console.width, from_ms=from_ms, to_ms=to_ms):
            console.print(line)
        for line in waits(found) if critical_path else ():
            console.print(line, soft_wrap=True)


@app.command(epilog=_example("zbplan compare problem.json", "zbplan compare problem.json --json > comparison.json"))
def compare(
    problem: ProblemFile,
    as_json: Annotated[bool, typer.Option("--json", help="Print JSON instead of a table.")] = False,
) -> None:
    """Compare what every method makes of a problem."""
    from zbplan.draw.comparison import Comparison

    asked = _read_problem(problem, method="auto")
    rows = _rows(asked)
    best, bound = _solved(asked)
    comparison = Comparison([*rows, best], bound)
    if as_json:
        typer.echo(json.dumps({"key": asked.key, **comparison.as_json()}, indent=2))
        return
    with _printed() as console:
        for part in comparison.lines():
            console.print(part)


@app.command(epilog=_example("zbplan serve --port 8642 --database-url sqlite:///plans.sqlite3"))
def serve(
    host: Annotated[str, typer.Option(help="Address to listen on.")] = "127.0.0.1",
    port: Annotated[int, typer.Option(help="Port to listen on; 0 takes a free one.")] = 8642,
    database_url: Annotated[str, typer.Option(help="Where plans are kept.")] = "sqlite:///zbplan.sqlite3",
) -> None:
    """Serve plans over HTTP until interrupted."""
    from api.server import serve as run
    from api.settings import Settings

    settings = Settings.parse({"host": host, "port": port, "database_url": database_url})
    try:
        run(settings)
    except OSError as error:
        found = error.strerror or str(error)
        needed = "an address of this machine and a free port"
        raise InvalidInputError([Finding(f"--host {host} --port {port}", found, needed)]) from None


@app.command(
    context_settings={"allow_extra_args": True, "ignore_unknown_options": True, "help_option_names": []},
    add_help_option=False,
)
def profile(ctx: typer.Context) -> None:
    """Measure a model on the nodes that train it."""
    from profiler.cli import main as measure

    raise typer.Exit(measure(ctx.args, prog="zbplan profile", splitter="runtime_client:split"))


@app.command(epilog=_example("zbplan fetch http://127.0.0.1:8642 $KEY -o plan.json"))
def fetch(
    url: Annotated[str, typer.Argument(metavar="URL", help="Where the service answers.")],
    key: Annotated[str, typer.Argument(metavar="KEY", help="The key of the problem, as the service gave it.")],
    output: Output = files.STANDARD,
    timeout_s: Annotated[float, typer.Option(min=0, help="Seconds to wait for a plan.")] = 300.0,
) -> None:
    """Fetch the plan of a problem from a service."""
    from runtime_client.service import download
    from zbplan.validate import check

    files.check_writable(output)
    with warnings.catch_warnings(record=True) as caught:
        warnings.simplefilter("always")
        found = download(url, key, timeout_s=timeout_s)
    for warning in caught:
        _say(f"warning: {warning.message}")
    _deliver(check(found), output)


def _read(kind: type[AnyRecord], source: str) -> AnyRecord:
    content = files.read(source)
    try:
        return kind.parse_json(content)
    except InvalidInputError as error:
        findings = [Finding(f"{source} {finding.path}", finding.found, finding.needed) for finding in error.findings]
        raise InvalidInputError(findings) from None


def _read_problem(source: str, **changes: object) -> Problem:
    from zbplan.advice import advice
    from zbplan.problem import Problem

    problem = _read(Problem, source)
    for sentence in advice(problem):
        _say(f"warning: {source} {sentence}")
    return Problem.parse({**problem.model_dump(), **changes}) if changes else problem


def _deliver(plan: Plan, output: str) -> None:
    files.write(output, f"{plan.to_json()}\n")
    typer.echo(f"{output}: {_summary(plan)}", err=output == files.STANDARD)


def _summary(plan: Plan) -> str:
    cost = f"iteration {plan.metrics.iteration_ms:.6g} ms, bubble {plan.metrics.bubble_rate:.2%}"
    bound = f"bound {plan.bound.iteration_ms:.6g} ms, gap {plan.bound.gap:.2%}"
    return f"{plan.provenance.method}, {cost}, {bound}, key {plan.key}"


@contextmanager
def _printed(width: int | None = None) -> Iterator[Console]:
    """Print what is drawn on a console; the console itself would end the process at a closed pipe."""
    from rich.console import Console

    console = Console(width=width, highlight=False)
    with console.capture() as capture:
        yield console
    typer.echo(capture.get(), nl=False, color=console.is_terminal)


def _require_stretch(plan: Plan, from_ms: float | None, to_ms: float | None) -> None:
    from zbplan.draw.terminal import span_ms

    begin, end = span_ms(plan)
    first, last = begin if from_ms is None else from_ms, end if to_ms is None else to_ms
    if not (first < last and first < end and last > begin) and (from_ms is not None or to_ms is not None):
        needed = f"a stretch of time between {begin:g} and {end:g} ms"
        raise InvalidInputError([Finding("--from-ms, --to-ms", f"{first:g} to {last:g}", needed)])


def _rows(problem: Problem) -> list[Row]:
    """Return what each constructive method makes of a problem."""
    from heuristic import candidates
    from zbplan.problem import Problem

    # Kernels are compiled or loaded when first called, which is no part of what a method takes.
    profile = {"stages": 2, "t_f_ms": 1, "t_b_ms": 1, "t_w_ms": 1, "t_comm_ms": 0, "m_b_bytes": 1, "m_w_bytes": 1}
    candidates(Problem.parse({"profile": profile, "devices": 2, "microbatches": 2}))
    return [_row(candidate) for candidate in candidates(problem)]


def _row(candidate: Built | Refused) -> Row:
    """Judge what a method made; that it comes from a builder does not make it legal."""
    from heuristic import Refused
    from zbplan.draw.comparison import Row
    from zbplan.validate import validate as violations_of

    row = Row(candidate.method, candidate.method, candidate.placement, candidate.build_ms)
    if isinstance(candidate, Refused):
        return replace(row, why_not=candidate.error.reason)
    violations = violations_of(candidate.plan)
    return replace(row, why_not=str(violations[0])) if violations else replace(row, metrics=candidate.plan.metrics)


def _solved(problem: Problem) -> tuple[Row, Bound]:
    """Return what the solver makes of a problem, and its bound."""
    from solver import solve
    from zbplan.draw.comparison import Row

    began = time.perf_counter()
    best = solve(problem)
    took_ms = 1000 * (time.perf_counter() - began)
    return Row("auto", best.provenance.method, best.placement, took_ms, best.metrics), best.bound
