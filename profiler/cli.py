"""The command line of the profiler, which needs no more than the profiler itself."""

from __future__ import annotations

import argparse
import os
import sys
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import get_args

import torch
import torch.distributed as dist

from profiler.agent import Turns, measure
from profiler.errors import MeasurementError
from profiler.model import load_function, load_model
from profiler.post import post
from profiler.table import table
from zbplan import placement as placements
from zbplan.errors import ZbplanError
from zbplan.profile import Profile

EXAMPLE = """\
example, one process for each of four devices:
  torchrun --standalone --nproc-per-node 4 -m profiler examples.gpt:staged_model \\
      --splitter runtime_client:split --output profile.json
"""


def main(arguments: Sequence[str], *, prog: str = "python -m profiler", splitter: str | None = None) -> int:
    """Run the command and return its exit status: 0, or 2 with what is wrong on stderr.

    Parameters
    ----------
    arguments
        What stands behind the command's name.
    prog
        The command's name in its help.
    splitter
        Default of ``--splitter``.
    """
    options = _parser(prog, splitter).parse_args(arguments)
    try:
        with _process_group(_device(options)):
            profile = _measure(options)
        if _rank() == 0:
            _deliver(profile, options)
    except ZbplanError as error:
        if _rank() == 0 or not getattr(error, "on_every_rank", False):
            print(f"{prog}: {error}", file=sys.stderr)  # noqa: T201
        return 2
    return 0


def _parser(prog: str, splitter: str | None) -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(
        prog=prog,
        description="Measure F, B, W, transfers and memory of a model cut in stages.",
        epilog=EXAMPLE,
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )
    add = parser.add_argument
    add("factory", help="module:function; called with the number of stages, returns a profiler.StagedModel")
    add("--stages", type=int, help="number of stages (default: one per process)")
    add("--placement", choices=["linear", "interleaved", "v"], default="linear", help="which stages a process holds")
    add("--engine-mode", choices=["weight_grad_store", "fused"], default="weight_grad_store", help="how backward runs")
    add("--splitter", default=splitter, help="module:function that splits a stage's backward (default: %(default)s)")
    add("--device", choices=["cpu", "cuda"], help="where to compute (default: cuda where there is one)")
    add("--warmup", type=int, default=2, help="runs of each op that are dropped (default: %(default)s)")
    add("--samples", type=int, default=5, help="runs of each op whose median counts (default: %(default)s)")
    add("--turns", choices=get_args(Turns), default="auto", help="whether processes measure at the same time")
    add("--t-comm-ms", type=float, help="T_comm, where it is not to be measured")
    add("--name", help="name of the profile (default: the model's)")
    add("--output", "-o", type=Path, default=Path("profile.json"), help="file to write (default: %(default)s)")
    add("--post", metavar="URL", help="service to post the profile to, once it is written")
    return parser


def _measure(options: argparse.Namespace) -> Profile:
    if options.engine_mode == "weight_grad_store" and options.splitter is None:
        raise MeasurementError("found no --splitter; needed one for weight_grad_store, or --engine-mode fused")
    count = int(os.environ.get("WORLD_SIZE", "1"))
    stages = count if options.stages is None else options.stages
    profile = measure(
        load_model(options.factory, stages),
        splitter=load_function(options.splitter) if options.engine_mode == "weight_grad_store" else None,
        device=_device(options),
        placement=None if count == 1 else placements.candidates(options.placement, stages, count)[0],
        warmup=options.warmup,
        steady=options.samples,
        turns=options.turns,
        t_comm_ms=options.t_comm_ms,
    )
    return profile if options.name is None else profile.model_copy(update={"name": options.name})


def _deliver(profile: Profile, options: argparse.Namespace) -> None:
    print(table(profile))  # noqa: T201
    try:
        options.output.write_text(profile.to_json(), encoding="utf-8")
    except OSError as error:
        print(profile.to_json())  # noqa: T201 (so that it is not lost)
        raise MeasurementError(f"{options.output}: found {error.strerror}; needed a file to write") from error
    print(f"wrote {options.output}")  # noqa: T201
    if options.post is not None:
        post(profile, options.post)
        print(f"posted to {options.post}")  # noqa: T201


def _device(options: argparse.Namespace) -> torch.device:
    if options.device == "cuda" and not torch.cuda.is_available():
        raise MeasurementError("--device: found no CUDA device that torch can use; needed one, or --device cpu")
    if options.device == "cpu" or not torch.cuda.is_available():
        return torch.device("cpu")
    return torch.device("cuda", int(os.environ.get("LOCAL_RANK", "0")))


def _rank() -> int:
    return int(os.environ.get("RANK", "0"))


@contextmanager
def _process_group(device: torch.device) -> Iterator[None]:
    """Join the processes that torchrun started, if it did."""
    if "WORLD_SIZE" not in os.environ:
        yield
        return
    try:
        dist.init_process_group("cpu:gloo,cuda:nccl" if device.type == "cuda" else "gloo")
    except (RuntimeError, ValueError) as error:
        raise MeasurementError(f"joining the ranks: found {error}; needed what torchrun sets up") from error
    try:
        yield
    finally:
        dist.destroy_process_group()
