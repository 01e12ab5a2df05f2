"""Host cost of the weight-gradient store: B and W against the full backward, on blocks so small that only it counts.

Run ``python -m benchmarks.runtime_store``. The ratio must not pass 1.2. Both backwards run in turn and the least of
many runs is taken, so that what else the machine does weighs little.
"""

from __future__ import annotations

import copy
import sys
import time
from collections.abc import Callable

import torch
from torch import Tensor, nn

from runtime_client import split

BLOCKS, WIDTH, ROWS = 16, 16, 4
RUNS = 400
LIMIT = 1.2


class Block(nn.Module):
    """The Linears of a transformer block, with a norm, an activation and two residual additions."""

    def __init__(self) -> None:
        super().__init__()
        self.norm = nn.LayerNorm(WIDTH)
        self.project, self.out = nn.Linear(WIDTH, 3 * WIDTH), nn.Linear(3 * WIDTH, WIDTH)
        self.up, self.down = nn.Linear(WIDTH, 4 * WIDTH), nn.Linear(4 * WIDTH, WIDTH)

    def forward(self, x: Tensor) -> Tensor:
        """Run the block."""
        x = x + self.out(torch.tanh(self.project(self.norm(x))))
        return x + self.down(torch.relu(self.up(x)))


def backward_ms(module: nn.Module, run_weights: Callable[[], None]) -> float:
    """Return the milliseconds of B and W, behind an F that is not counted."""
    x = torch.ones(ROWS, WIDTH, requires_grad=True)
    y = module(x)
    dy = torch.ones_like(y)
    started = time.perf_counter()
    y.backward(dy)
    run_weights()
    return 1e3 * (time.perf_counter() - started)


def main() -> int:
    """Print both times and their ratio; return 1 if it is too high."""
    torch.manual_seed(0)
    torch.set_num_threads(1)
    full = nn.Sequential(*(Block() for _ in range(BLOCKS)))
    apart = copy.deepcopy(full)
    take = split(apart)
    times = [(backward_ms(full, lambda: None), backward_ms(apart, lambda: take()())) for _ in range(RUNS)]
    full_ms, apart_ms = map(min, zip(*times, strict=True))
    ratio = apart_ms / full_ms
    print(f"runtime_store: full backward {full_ms:.3f} ms, B and W {apart_ms:.3f} ms: {ratio:.3f}, must be <= {LIMIT}")
    return int(ratio > LIMIT)


if __name__ == "__main__":
    sys.exit(main())
