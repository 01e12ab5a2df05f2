"""The command line of the profiler, which needs no more than the profiler itself."""

from __future__ import annotations

import argparse
import os
import sys
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from typing import get_args

import torch
import torch.distributed as dist

from profiler.agent import Options, Turns, measure, measure_layers
from profiler.delivery import add_delivery, deliver
from profiler.errors import MeasurementError
from profiler.model import LayeredModel, StagedModel, load_function, load_layers, load_model
from profiler.models import PAPER_MODELS
from profiler.progress import Progress, bar
from zbplan import placement as placements
from zbplan.errors import ZbplanError
from zbplan.profile import EngineMode, Profile

EXAMPLE = """\
examples:
  one process for each of four devices:
    torchrun --standalone --nproc-per-node 4 -m profiler examples.gpt:staged_model \\
        --splitter runtime_client:split --output profile.json
  all stages in turn on one GPU, with a T_comm from elsewhere:
    python -m profiler gpt-1.5b --stages 8 --t-comm-ms 0.6 --splitter runtime_client:split
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
            deliver(profile, options)
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
    known = ", ".join(PAPER_MODELS)
    add("factory", help=f"module:function, called with the number of stages for a StagedModel; or one of {known}")
    add("--stages", type=int, help="number of stages (default: one per device)")
    add("--layers", action="store_true", help="measure per layer; module:function is called for a LayeredModel")
    add("--placement", choices=["linear", "interleaved", "v"], default="linear", help="which stages a device holds")
    add("--engine-mode", choices=get_args(EngineMode), default="weight_grad_store", help="how backward runs")
    add("--splitter", default=splitter, help="module:function that splits a stage's backward (default: %(default)s)")
    add("--unsplit", metavar="I,J", default="", help="stages (or layers) that are to run BW only")
    add("--device", choices=["cpu", "cuda"], help="where to compute (default: cuda where there is one)")
    add("--tensor-parallel", type=int, default=1, metavar="K", help="processes that make up a device (default: 1)")
    add("--warmup", type=int, default=2, help="runs of each op that are dropped (default: %(default)s)")
    add("--samples", type=int, default=5, help="runs of each op whose median counts (default: %(default)s)")
    add("--turns", choices=get_args(Turns), default="auto", help="whether devices measure at the same time")
    add("--t-comm-ms", type=float, help="T_comm, where it is not to be measured; the profile says so")
    add("--force", action="store_true", help="keep a profile whose samples are too few or scattered; it says so")
    add_delivery(parser)
    return parser


def _measure(options: argparse.Namespace) -> Profile:
    devices = max(int(os.environ.get("WORLD_SIZE", "1")) // max(options.tensor_parallel, 1), 1)
    stages = devices if options.stages is None else options.stages
    if options.layers:
        layered = _layers(options)
        with bar(2 * len(layered.layers) - 1, show=_rank() == 0) as progress:
            return measure_layers(layered, stages, _options(options, progress))
    model = _model(options, stages)
    placement = None if devices == 1 else placements.candidates(options.placement, stages, devices)[0]
    with bar(2 * stages - 1, show=_rank() == 0) as progress:
        return measure(model, _options(options, progress), placement=placement)


def _options(options: argparse.Namespace, progress: Progress) -> Options:
    stored = options.engine_mode == "weight_grad_store" and options.splitter is not None
    return Options(
        engine_mode=options.engine_mode,
        splitter=load_function(options.splitter) if stored else None,
        unsplit=_numbers(options.unsplit),
        device=_device(options),
        warmup=options.warmup,
        steady=options.samples,
        turns=options.turns,
        t_comm_ms=options.t_comm_ms,
        tensor_parallel=options.tensor_parallel,
        force=options.force,
        progress=progress,
    )


def _model(options: argparse.Namespace, stages: int) -> StagedModel:
    if options.factory in PAPER_MODELS:
        from profiler import gpt

        return gpt.staged_model(PAPER_MODELS[options.factory], stages, dtype=_dtype(options))
    return load_model(options.factory, stages)


def _layers(options: argparse.Namespace) -> LayeredModel:
    if options.factory in PAPER_MODELS:
        from profiler import gpt

        return gpt.layered_model(PAPER_MODELS[options.factory], dtype=_dtype(options))
    return load_layers(options.factory)


def _dtype(options: argparse.Namespace) -> torch.dtype:
    return torch.bfloat16 if _device(options).type == "cuda" else torch.float32


def _numbers(text: str) -> list[int]:
    try:
        return [int(part) for part in text.split(",") if part.strip()]
    except ValueError:
        raise MeasurementError(f"--unsplit: found {text!r}; needed numbers of stages such as 0,3") from None


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
    if device.type == "cuda":
        torch.cuda.set_device(device)
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
