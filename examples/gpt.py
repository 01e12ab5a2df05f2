"""A small GPT in plain torch.nn, cut in stages: byte vocabulary, about 10 million parameters, text shipped beside it.

Weights depend on the seed and the layer only, so any cut of the model starts from the same numbers.
"""

from __future__ import annotations

from pathlib import Path

import torch
from torch import Tensor, nn
from torch.nn import functional

from profiler import StagedModel

VOCABULARY = 256
WIDTH = 320
HEADS = 5
BLOCKS = 8
SEQUENCE = 64
MICROBATCH = 4
SEED = 1234
TEXT = Path(__file__).with_name("text.txt")


class Embedding(nn.Module):
    """Bytes, each with its position, as vectors."""

    def __init__(self) -> None:
        super().__init__()
        self.byte = nn.Embedding(VOCABULARY, WIDTH)
        self.position = nn.Embedding(SEQUENCE, WIDTH)

    def forward(self, tokens: Tensor) -> Tensor:
        """Map int64[microbatch, sequence] to float[microbatch, sequence, width]."""
        return self.byte(tokens) + self.position(torch.arange(tokens.shape[1], device=tokens.device))


class Attention(nn.Module):
    """Causal self-attention."""

    def __init__(self) -> None:
        super().__init__()
        self.qkv = nn.Linear(WIDTH, 3 * WIDTH)
        self.projection = nn.Linear(WIDTH, WIDTH)

    def forward(self, x: Tensor) -> Tensor:
        """Map float[microbatch, sequence, width] to the same shape."""
        heads = self.qkv(x).unflatten(-1, (3, HEADS, WIDTH // HEADS)).permute(2, 0, 3, 1, 4)
        mixed = functional.scaled_dot_product_attention(*heads.unbind(), is_causal=True)
        return self.projection(mixed.transpose(1, 2).flatten(-2))


class Block(nn.Module):
    """Attention and a two-layer perceptron, each behind its norm and around it the residual."""

    def __init__(self) -> None:
        super().__init__()
        self.attention = nn.Sequential(nn.LayerNorm(WIDTH), Attention())
        self.perceptron = nn.Sequential(
            nn.LayerNorm(WIDTH), nn.Linear(WIDTH, 4 * WIDTH), nn.GELU(), nn.Linear(4 * WIDTH, WIDTH)
        )

    def forward(self, x: Tensor) -> Tensor:
        """Map float[microbatch, sequence, width] to the same shape."""
        x = x + self.attention(x)
        return x + self.perceptron(x)


class Head(nn.Sequential):
    """Vectors as logits of the next byte."""

    def __init__(self) -> None:
        super().__init__(nn.LayerNorm(WIDTH), nn.Linear(WIDTH, VOCABULARY, bias=False))


LAYERS: list[type[nn.Module]] = [Embedding, *[Block] * BLOCKS, Head]


def layer(index: int) -> nn.Module:
    """Build layer 0 … 9 with its own random numbers, whatever else has been built."""
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(SEED + index)
        return LAYERS[index]().apply(_initialise)


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


def loss(logits: Tensor, target: Tensor) -> Tensor:
    """Return the mean cross entropy per byte."""
    return functional.cross_entropy(logits.flatten(0, 1), target.flatten())


def optimizer(parameters: list[nn.Parameter]) -> torch.optim.Optimizer:
    """Return the optimizer of a stage's parameters."""
    return torch.optim.AdamW(parameters, lr=3e-4)


def staged_model(count: int) -> StagedModel:
    """Return the model in ``count`` stages, for the profiler."""
    tokens, target = batch(0, 1)
    return StagedModel(
        name=f"gpt-10m, {count} stages",
        stages=[lambda index=index: stage(index, count) for index in range(count)],
        microbatch=(tokens,),
        target=target,
        loss=loss,
        optimizer=optimizer,
        environment={"microbatch_size": MICROBATCH, "sequence_length": SEQUENCE},
    )


def _initialise(module: nn.Module) -> None:
    if isinstance(module, nn.Linear | nn.Embedding):
        nn.init.normal_(module.weight, std=0.02)
    if isinstance(module, nn.Linear) and module.bias is not None:
        nn.init.zeros_(module.bias)
