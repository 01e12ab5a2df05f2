"""Partition: cut a model's layers in stages."""

from __future__ import annotations

import json
from typing import TYPE_CHECKING, Annotated

import typer

from zbplan import files
from zbplan.cli.application import app, example
from zbplan.cli.drawing import printed
from zbplan.cli.records import read
from zbplan.errors import Finding, InvalidInputError

if TYPE_CHECKING:
    from heuristic import Candidate, Cut
    from zbplan.draw.cuts import CutRow
    from zbplan.placement import Placement
    from zbplan.problem import Problem
    from zbplan.profile import Profile

ProfileFile = Annotated[
    str, typer.Argument(metavar="PROFILE.json", help="A profile with layers; - reads standard input.")
]
Limit = Annotated[
    str | None,
    typer.Option(
        metavar="BYTES", help="Per device, static memory included: bytes, one for each, or a multiple (1.5x)."
    ),
]


@app.command(
    epilog=example(
        "zbplan partition profile.json --devices 8 --microbatches 24 --memory-limit 1.5x",
        "zbplan partition profile.json --devices 8 --microbatches 24 -o problem.json && zbplan plan problem.json",
    )
)
def partition(
    profile: ProfileFile,
    devices: Annotated[int, typer.Option(help="Devices of the pipeline.")],
    microbatches: Annotated[int, typer.Option(help="Microbatches of an iteration.")],
    placement: Annotated[str, typer.Option(help="auto compares linear, v, and 2 to 4 chunks interleaved.")] = "auto",
    memory_limit: Limit = None,
    optimizer: Annotated[str, typer.Option(help="synchronous or post_validated.")] = "synchronous",
    exact: Annotated[bool, typer.Option("--exact", help="Try every cut; for few layers.")] = False,
    as_json: Annotated[bool, typer.Option("--json", help="Print JSON instead of a table.")] = False,
    output: Annotated[
        str | None,
        typer.Option(
            "--output", "-o", metavar="PROBLEM.json", help="Write the problem of the best cut; - prints it alone."
        ),
    ] = None,
) -> None:
    """Cut a model's layers in stages so that the plan takes the least time within memory."""
    from heuristic import partition as cut_layers
    from zbplan.draw.cuts import Cuts
    from zbplan.problem import Problem

    files.check_writable(output or files.STANDARD)
    asked = {"devices": devices, "microbatches": microbatches, "optimizer": optimizer}
    limit = None if memory_limit is None else _limit(memory_limit)
    problem = Problem.parse({**asked, "profile": _layered(profile), "placement": "auto", "memory_limit": limit})
    found = cut_layers(problem, placements=_placements(problem, placement), exact=exact)
    if output is not None:
        files.write(output, f"{found.best.problem.to_json()}\n")
    if output == files.STANDARD:
        return
    cuts = Cuts([_row(candidate) for candidate in found.candidates], _layer_count(problem))
    if as_json:
        typer.echo(json.dumps({"key": problem.key, **cuts.as_json()}, indent=2))
        return
    with printed() as console:
        console.print(cuts.table())
        console.print()
        for line in cuts.gains():
            console.print(line, soft_wrap=True)


def _layered(source: str) -> Profile:
    from zbplan.profile import Profile

    profile = read(Profile, source)
    if profile.layers is None:
        needed = "a profile per layer, such as zbplan profile --layers or zbplan estimate write"
        raise InvalidInputError([Finding(f"{source} $.layers", "nothing", needed)])
    return profile


def _layer_count(problem: Problem) -> int:
    return 0 if problem.open_layers is None else problem.open_layers.count


def _limit(text: str) -> float | list[float] | str:
    """Return a memory limit as JSON has it; a text that is no number is for the problem to refuse."""
    try:
        limits = [float(part) for part in text.split(",")]
    except ValueError:
        return text
    return limits[0] if len(limits) == 1 else limits


def _placements(problem: Problem, name: str) -> list[Placement]:
    """Return the placements of a name that the layers are enough for."""
    from zbplan.draw.labels import placement_label
    from zbplan.placement import NAMES

    if name not in NAMES:
        raise InvalidInputError([Finding("--placement", f"{name!r}", f"one of {', '.join(NAMES)}")])
    named = [each for each in problem.placements if name in ("auto", placement_label(each))]
    if not named:
        found = f"{name!r} with {_layer_count(problem)} layers on {problem.devices} devices"
        needed = f"two devices or more, and {2 * problem.devices} layers or more: a layer for each stage"
        raise InvalidInputError([Finding("--placement", found, needed)])
    return named


def _row(candidate: Candidate) -> CutRow:
    from zbplan.draw.cuts import CutRow

    best, even, shorter = candidate.best, _iteration_ms(candidate.even), _iteration_ms(candidate.shorter)
    return CutRow(candidate.placement, None if best is None else best.starts, _iteration_ms(best), even, shorter)


def _iteration_ms(cut: Cut | None) -> float | None:
    return None if cut is None else cut.iteration_ms
