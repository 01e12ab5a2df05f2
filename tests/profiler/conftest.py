from types import SimpleNamespace

import pytest

from tests.profiler import emulated


class VirtualTime:
    """A clock that nothing but an emulated sleep moves: what is measured is exact on any machine."""

    def __init__(self) -> None:
        self._now_ns = 0

    def sleep(self, milliseconds: float) -> None:
        self._now_ns += round(milliseconds * 1e6)

    def perf_counter_ns(self) -> int:
        return self._now_ns


def install(monkeypatch: pytest.MonkeyPatch) -> VirtualTime:
    clock = VirtualTime()
    monkeypatch.setattr("profiler.clock.time", SimpleNamespace(perf_counter_ns=clock.perf_counter_ns))
    monkeypatch.setattr(emulated, "sleep", clock.sleep)
    return clock


@pytest.fixture(autouse=True)
def virtual_time(monkeypatch: pytest.MonkeyPatch) -> VirtualTime:
    return install(monkeypatch)
