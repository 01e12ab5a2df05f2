"""Small stages with what makes a split backward hard: norms, biases, a weight used twice, tuples between stages."""

from __future__ import annotations

import torch
from torch import Tensor, nn
from torch.distributed.pipelining import PipelineStage
from torch.nn import functional

VOCABULARY, WIDTH, LENGTH = 17, 8, 5


class Block(nn.Module):
    """Residual MLP and one Linear that is used twice."""

    def __init__(self) -> None:
        super().__init__()
        self.norm = nn.LayerNorm(WIDTH)
        self.up = nn.Linear(WIDTH, 2 * WIDTH)
        self.down = nn.Linear(2 * WIDTH, WIDTH, bias=False)
        self.twice = nn.Linear(WIDTH, WIDTH)

    def forward(self, x: Tensor) -> Tensor:
        x = x + self.down(functional.gelu(self.up(self.norm(x))))
        return x + self.twice(torch.tanh(self.twice(x)))


def text_stages(stages: int, seed: int = 0) -> list[nn.Module]:
    """Embedding, a block per stage, a head."""
    torch.manual_seed(seed)
    blocks = [nn.Sequential(Block()) for _ in range(stages)]
    blocks[0].insert(0, nn.Embedding(VOCABULARY, WIDTH))
    blocks[-1].append(nn.LayerNorm(WIDTH)).append(nn.Linear(WIDTH, VOCABULARY))
    return list(blocks)


def frozen_stages(stages: int, seed: int = 0) -> list[nn.Module]:
    """Stage 0 frozen whole, in stage 1 one weight and one bias."""
    built = text_stages(stages, seed)
    built[0].requires_grad_(False)
    built[1][0].up.weight.requires_grad_(False)
    built[1][0].twice.bias.requires_grad_(False)
    return built


def tied_stages(stages: int, seed: int = 0) -> list[nn.Module]:
    """Embedding and head share one weight, as one device that holds both does."""
    built = text_stages(stages, seed)
    built[-1][-1].weight = built[0][0].weight
    return built


class Attending(nn.Module):
    """torch's own attention, which uses the weights of the Linear inside it without calling it."""

    def __init__(self) -> None:
        super().__init__()
        self.attention = nn.MultiheadAttention(WIDTH, 2, batch_first=True)

    def forward(self, x: Tensor) -> Tensor:
        attended: Tensor = self.attention(x, x, x, need_weights=False)[0]
        return x + attended


def attending_stages(stages: int, seed: int = 0) -> list[nn.Module]:
    built = text_stages(stages, seed)
    for stage in built:
        stage.insert(1, Attending())
    return built


class Conv1D(nn.Module):
    """A Linear with its weight the other way round, as GPT-2 has it."""

    def __init__(self, features: int, inputs: int) -> None:
        super().__init__()
        self.features = features
        self.weight = nn.Parameter(torch.randn(inputs, features))
        self.bias = nn.Parameter(torch.randn(features))

    def forward(self, x: Tensor) -> Tensor:
        y = torch.addmm(self.bias, x.view(-1, x.size(-1)), self.weight)
        return y.view(*x.size()[:-1], self.features)


class Placed(nn.Module):
    """The outputs of two layers and a view of a parameter, added: the gradients of all three share memory."""

    def __init__(self, rows: int) -> None:
        super().__init__()
        self.linear, self.conv = nn.Linear(WIDTH, WIDTH), Conv1D(WIDTH, WIDTH)
        self.position = nn.Parameter(torch.randn(rows * LENGTH, WIDTH))

    def forward(self, x: Tensor) -> Tensor:
        return self.linear(x) + self.conv(x) + self.position.view_as(x)


def placed_stages(stages: int, rows: int, seed: int = 0) -> list[nn.Module]:
    """For microbatches of a number of rows."""
    built = text_stages(stages, seed)
    for stage in built:
        stage.insert(1, Placed(rows))
    return built


class Tupled(nn.Module):
    """Passes on (what has a gradient, whole numbers, what has no gradient)."""

    def __init__(self, inner: nn.Module, *, first: bool, last: bool) -> None:
        super().__init__()
        self.inner, self.first, self.last = inner, first, last

    def forward(self, x: Tensor, *others: Tensor) -> Tensor | tuple[Tensor, ...]:
        tokens, mask = (x, (x % 2).float()) if self.first else others
        y = self.inner(x)
        y = y * (1 + mask.unsqueeze(-1)) + (tokens % 3).unsqueeze(-1)
        return y if self.last else (y, tokens, mask)


def tupled_stages(stages: int, seed: int = 0) -> list[nn.Module]:
    built = text_stages(stages, seed)
    return [Tupled(inner, first=at == 0, last=at == stages - 1) for at, inner in enumerate(built)]


class Permuted(nn.Module):
    """Ends with a tensor that lies in memory in another order, or with gaps, or starts from one."""

    def __init__(self, inner: nn.Module, way: str, *, first: bool, last: bool) -> None:
        super().__init__()
        self.inner, self.way, self.first, self.last = inner, way, first, last

    def forward(self, x: Tensor) -> Tensor:
        if self.way == "transposed":
            y = self.inner(x if self.first else x.transpose(1, 2))
            return y if self.last else y.transpose(1, 2)
        y = self.inner(x)
        return y if self.last else torch.cat([y, y], dim=-1)[..., :WIDTH]


def transposed_stages(stages: int, seed: int = 0) -> list[nn.Module]:
    return _permuted(text_stages(stages, seed), "transposed")


def sliced_stages(stages: int, seed: int = 0) -> list[nn.Module]:
    return _permuted(text_stages(stages, seed), "sliced")


def _permuted(built: list[nn.Module], way: str) -> list[nn.Module]:
    last = len(built) - 1
    return [Permuted(inner, way, first=at == 0, last=at == last) for at, inner in enumerate(built)]


def on_one_device(stages: list[nn.Module]) -> list[PipelineStage]:
    """Return stages that this process holds all."""
    return [PipelineStage(module, index, len(stages), torch.device("cpu")) for index, module in enumerate(stages)]


def batch(rows: int, seed: int = 1) -> tuple[Tensor, Tensor]:
    """Tokens in, tokens out."""
    generator = torch.Generator().manual_seed(seed)
    tokens, target = (torch.randint(VOCABULARY, (rows, LENGTH), generator=generator) for _ in range(2))
    return tokens, target


def mean_loss(output: Tensor, target: Tensor) -> Tensor:
    return functional.cross_entropy(output.flatten(0, 1), target.flatten())


def sum_loss(output: Tensor, target: Tensor) -> Tensor:
    return functional.cross_entropy(output.flatten(0, 1), target.flatten(), reduction="sum")
