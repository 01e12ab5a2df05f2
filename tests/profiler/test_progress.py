import io
import sys

import pytest

from profiler.progress import Silent, bar


class Terminal(io.StringIO):
    def isatty(self) -> bool:
        return True


def test_a_terminal_shows_a_bar(monkeypatch: pytest.MonkeyPatch) -> None:
    terminal = Terminal()
    monkeypatch.setattr(sys, "stderr", terminal)
    monkeypatch.setenv("TERM", "xterm")
    with bar(2, show=True) as progress:
        progress.advance("stage 0 of 2")
    assert "stage 0 of 2" in terminal.getvalue()


@pytest.mark.parametrize(("terminal", "show"), [(io.StringIO(), True), (Terminal(), False)])
def test_elsewhere_nothing_is_shown(monkeypatch: pytest.MonkeyPatch, terminal: io.StringIO, show: bool) -> None:
    monkeypatch.setattr(sys, "stderr", terminal)
    with bar(2, show=show) as progress:
        progress.advance("stage 0 of 2")
    assert isinstance(progress, Silent)
    assert terminal.getvalue() == ""


def test_without_rich_nothing_is_shown(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(sys, "stderr", Terminal())
    monkeypatch.setitem(sys.modules, "rich", None)
    with bar(2, show=True) as progress:
        assert isinstance(progress, Silent)
