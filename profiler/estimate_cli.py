"""The command line of ``estimate``: a profile from formulas, where there is no GPU yet. Needs no torch."""

from __future__ import annotations

import argparse
import dataclasses
import sys
from collections.abc import Sequence

from profiler.delivery import add_delivery, deliver
from profiler.errors import MeasurementError
from profiler.formulas import DEVICES, Device, estimate
from profiler.models import PADDED_VOCABULARY, PAPER_MODELS, Transformer
from zbplan.errors import ZbplanError

EXAMPLE = """\
examples:
  a model of the Zero Bubble paper:   zbplan estimate gpt-6.2b --device h100
  a model of your own:                zbplan estimate --blocks 32 --hidden 4096 --heads 32 --sequence 4096 --stages 8
"""
SIZES = ("blocks", "hidden", "heads", "sequence", "microbatch_size", "vocabulary")
PEAKS = ("peak_tflops", "memory_gb_per_s", "link_gb_per_s", "link_latency_ms", "efficiency")


def main(arguments: Sequence[str], *, prog: str = "zbplan estimate") -> int:
    """Run the command and return its exit status: 0, or 2 with what is wrong on stderr."""
    options = _parser(prog).parse_args(arguments)
    try:
        profile = estimate(
            _model(options),
            _device(options),
            stages=options.stages,
            tensor_parallel=options.tensor_parallel,
            flash_attention=options.flash_attention,
        )
        deliver(profile, options)
    except ZbplanError as error:
        print(f"{prog}: {error}", file=sys.stderr)  # noqa: T201
        return 2
    return 0


def _parser(prog: str) -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(
        prog=prog,
        description="Estimate a profile from transformer formulas and a device's peak numbers; measures nothing.",
        epilog=EXAMPLE,
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )
    add = parser.add_argument
    add("model", nargs="?", choices=list(PAPER_MODELS), help="a model of the paper; or give all sizes below")
    add("--blocks", type=int, help="transformer layers")
    add("--hidden", type=int, help="hidden size")
    add("--heads", type=int, help="attention heads")
    add("--sequence", type=int, help="tokens per sequence")
    add("--microbatch-size", type=int, help="sequences per microbatch (default for own sizes: 1)")
    add("--vocabulary", type=int, help=f"tokens known (default: {PADDED_VOCABULARY})")
    add("--stages", type=int, help="number of stages (default: the paper's pipeline ranks; 1 for own sizes)")
    add("--tensor-parallel", type=int, default=1, metavar="K", help="accelerators that share each layer (default: 1)")
    add("--flash-attention", action="store_true", help="the attention matrix is not kept for the backward")
    add("--device", choices=list(DEVICES), default="a100", help="whose peak numbers (default: %(default)s)")
    add("--peak-tflops", type=float, help="dense bf16 TFLOP/s, instead of the device's")
    add("--memory-gb-per-s", type=float, help="memory bandwidth, instead of the device's")
    add("--link-gb-per-s", type=float, help="bandwidth to the next device, instead of the device's")
    add("--link-latency-ms", type=float, help="latency to the next device (default: 0.02)")
    add("--efficiency", type=float, help="part of the peaks that training reaches (default: 0.5)")
    add_delivery(parser)
    return parser


def _model(options: argparse.Namespace) -> Transformer:
    given = {name: getattr(options, name) for name in SIZES if getattr(options, name) is not None}
    if options.model is not None:
        return dataclasses.replace(PAPER_MODELS[options.model], **given)
    missing = [f"--{name}" for name in ("blocks", "hidden", "heads", "sequence") if name not in given]
    if missing:
        raise MeasurementError(f"found no {', '.join(missing)}; needed them, or one of {', '.join(PAPER_MODELS)}")
    return Transformer(**{"name": "transformer", "microbatch_size": 1, **given})


def _device(options: argparse.Namespace) -> Device:
    given = {name: getattr(options, name) for name in PEAKS if getattr(options, name) is not None}
    return dataclasses.replace(DEVICES[options.device], **given)
