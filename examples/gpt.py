"""A small GPT, cut in stages: byte vocabulary, about 10 million parameters, text shipped beside it.

Weights depend on the seed and the layer only, so any cut of the model starts from the same numbers.
"""

from __future__ import annotations

from functools import partial
from pathlib import Path
from typing import Any

import torch
from torch import Tensor, nn

from profiler import LayeredModel, StagedModel
from profiler.gpt import builders, loss
from profiler.models import Transformer

VOCABULARY = 256
BLOCKS = 8
SEQUENCE = 64
MICROBATCH = 4
SIZE = Transformer(
    name="gpt-10m",
    blocks=BLOCKS,
    hidden=320,
    heads=5,
    sequence=SEQUENCE,
    microbatch_size=MICROBATCH,
    vocabulary=VOCABULARY,
)
SEED = 1234
TEXT = Path(__file__).with_name("text.txt")

__all__ = ["batch", "layer", "layered_model", "loss", "optimizer", "stage", "staged_model"]


def layer(index: int) -> nn.Module:
    """Build layer 0 … 9 (embedding, blocks, head) with its own random numbers, whatever else has been built."""
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(SEED + index)
        return builders(SIZE)[index]()


def stage(index: int, count: int) -> nn.Module:
    """Build stage ``index`` of ``count``: an even share of the blocks; embedding and head go with the ends."""
    if not 1 <= count <= BLOCKS:
        raise ValueError(f"found {count} stages; needed 1 to {BLOCKS}, a block or more each")
    first, last = index * BLOCKS // count, (index + 1) * BLOCKS // count
    layers = range(first + (index > 0), last + 1 + (index == count - 1))
    return nn.Sequential(*(layer(number) for number in layers))


def batch(step: int, microbatches: int) -> tuple[Tensor, Tensor]:
    """Return the tokens and the bytes that follow them, both int64[microbatches * MICROBATCH, SEQUENCE]."""
    text = torch.frombuffer(bytearray(TEXT.read_bytes()), dtype=torch.uint8).long()
    rows = microbatches * MICROBATCH
    starts = torch.randint(len(text) - SEQUENCE, (rows, 1), generator=torch.Generator().manual_seed(SEED + step))
    windows = text[starts + torch.arange(SEQUENCE + 1)]
    return windows[:, :-1], windows[:, 1:]


def optimizer(parameters: list[nn.Parameter]) -> torch.optim.Optimizer:
    """Return the optimizer of a stage's parameters."""
    return torch.optim.AdamW(parameters, lr=3e-4)


def staged_model(count: int) -> StagedModel:
    """Return the model in ``count`` stages, for the profiler."""
    stages = [partial(stage, index, count) for index in range(count)]
    return StagedModel(name=f"gpt-10m, {count} stages", stages=stages, **_example())


def layered_model() -> LayeredModel:
    """Return the model as a list of layers, for the profiler to measure once and cut in any way."""
    return LayeredModel(name="gpt-10m", layers=[partial(layer, index) for index in range(BLOCKS + 2)], **_example())


def _example() -> dict[str, Any]:
    tokens, target = batch(0, 1)
    return {
        "microbatch": (tokens,),
        "target": target,
        "loss": loss,
        "optimizer": optimizer,
        "environment": {"microbatch_size": MICROBATCH, "sequence_length": SEQUENCE},
    }
