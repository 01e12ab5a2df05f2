"""GPTs of any size in plain torch.nn, as layers and as stages: what the known models are measured with."""

from __future__ import annotations

from collections.abc import Callable
from functools import partial

import torch
from torch import Tensor, nn
from torch.nn import functional

from profiler.model import LayeredModel, StagedModel
from profiler.models import Transformer
from zbplan.layers import even_starts


class Embedding(nn.Module):
    """Tokens, each with its position, as vectors."""

    def __init__(self, size: Transformer) -> None:
        super().__init__()
        self.token = nn.Embedding(size.vocabulary, size.hidden)
        self.position = nn.Embedding(size.sequence, size.hidden)

    def forward(self, tokens: Tensor) -> Tensor:
        """Map int64[microbatch, sequence] to float[microbatch, sequence, hidden]."""
        vectors: Tensor = self.token(tokens) + self.position(torch.arange(tokens.shape[1], device=tokens.device))
        return vectors


class Attention(nn.Module):
    """Causal self-attention."""

    def __init__(self, size: Transformer) -> None:
        super().__init__()
        self.heads = size.heads
        self.qkv = nn.Linear(size.hidden, 3 * size.hidden)
        self.projection = nn.Linear(size.hidden, size.hidden)

    def forward(self, x: Tensor) -> Tensor:
        """Map float[microbatch, sequence, hidden] to the same shape."""
        query, key, value = self.qkv(x).unflatten(-1, (3, self.heads, -1)).permute(2, 0, 3, 1, 4).unbind()
        mixed = functional.scaled_dot_product_attention(query, key, value, is_causal=True)
        projected: Tensor = self.projection(mixed.transpose(1, 2).flatten(-2))
        return projected


class Block(nn.Module):
    """Attention and a two-layer perceptron, each behind its norm and around it the residual."""

    def __init__(self, size: Transformer) -> None:
        super().__init__()
        hidden = size.hidden
        self.attention = nn.Sequential(nn.LayerNorm(hidden), Attention(size))
        self.perceptron = nn.Sequential(
            nn.LayerNorm(hidden), nn.Linear(hidden, 4 * hidden), nn.GELU(), nn.Linear(4 * hidden, hidden)
        )

    def forward(self, x: Tensor) -> Tensor:
        """Map float[microbatch, sequence, hidden] to the same shape."""
        x = x + self.attention(x)
        added: Tensor = x + self.perceptron(x)
        return added


class Head(nn.Sequential):
    """Vectors as logits of the next token."""

    def __init__(self, size: Transformer) -> None:
        super().__init__(nn.LayerNorm(size.hidden), nn.Linear(size.hidden, size.vocabulary, bias=False))


def builders(size: Transformer, *, dtype: torch.dtype = torch.float32) -> list[Callable[[], nn.Module]]:
    """Return what builds each layer: embedding, blocks, head."""
    kinds = [Embedding, *[Block] * size.blocks, Head]
    return [partial(_build, kind, size, dtype) for kind in kinds]


def loss(logits: Tensor, target: Tensor) -> Tensor:
    """Return the mean cross entropy per token."""
    return functional.cross_entropy(logits.flatten(0, 1).float(), target.flatten())


def layered_model(size: Transformer, *, dtype: torch.dtype = torch.float32) -> LayeredModel:
    """Return a GPT as a list of layers, with a microbatch of random tokens."""
    tokens = torch.randint(
        size.vocabulary, (size.microbatch_size, size.sequence + 1), generator=torch.Generator().manual_seed(0)
    )
    return LayeredModel(
        name=size.name,
        layers=builders(size, dtype=dtype),
        microbatch=(tokens[:, :-1].contiguous(),),
        target=tokens[:, 1:].contiguous(),
        loss=loss,
        environment={"microbatch_size": size.microbatch_size, "sequence_length": size.sequence},
    )


def staged_model(size: Transformer, stages: int, *, dtype: torch.dtype = torch.float32) -> StagedModel:
    """Return a GPT in as equal numbers of layers as possible, embedding and head counted as one each."""
    return layered_model(size, dtype=dtype).cut(even_starts(size.blocks + 2, stages))


def _build(kind: Callable[[Transformer], nn.Module], size: Transformer, dtype: torch.dtype) -> nn.Module:
    return kind(size).apply(_initialise).to(dtype)


def _initialise(module: nn.Module) -> None:
    if isinstance(module, nn.Linear | nn.Embedding):
        nn.init.normal_(module.weight, std=0.02)
    if isinstance(module, nn.Linear) and module.bias is not None:
        nn.init.zeros_(module.bias)
