from __future__ import annotations

import json
from collections.abc import Iterator
from dataclasses import dataclass

import pytest
import torch
import torch.distributed as dist

from tests.processes import Finished, torchrun
from tests.runtime_client.plans import zb_h1
from tests.runtime_client.serving import answer, serving


@pytest.fixture
def one_thread() -> Iterator[None]:
    """Sums are cut among threads, so equal bits need as many as a rank has."""
    before = torch.get_num_threads()
    torch.set_num_threads(1)
    yield
    torch.set_num_threads(before)


@pytest.fixture
def alone() -> Iterator[None]:
    """A process group of this process only: a pipeline of one device, which may hold many stages."""
    dist.init_process_group("gloo", store=dist.HashStore(), rank=0, world_size=1)
    yield
    dist.destroy_process_group()


RANKS = 2


@dataclass(frozen=True)
class StartUp:
    """All scenarios, run on all ranks in one start of the processes."""

    run: Finished
    asked: list[str]
    outcomes: list[dict[str, tuple[str, str]]]

    def of(self, scenario: str) -> list[tuple[str, str]]:
        """Return what a scenario came to on each rank."""
        assert self.run.returncode == 0, self.run.output
        return [tuple(outcomes[scenario]) for outcomes in self.outcomes]


@pytest.fixture(scope="session")
def start_up(tmp_path_factory: pytest.TempPathFactory) -> StartUp:
    folder = tmp_path_factory.mktemp("ranks")
    with serving(answer("done", zb_h1(2, 4))) as service:
        run = torchrun(RANKS, "tests.runtime_client.fetch_worker", service.url, str(folder))
    texts = [path.read_text() for path in sorted(folder.glob("*.json"))]
    return StartUp(run, [method for method, _, _ in service.asked], [json.loads(text) for text in texts])
