from __future__ import annotations

from types import SimpleNamespace

import pytest

from zbplan import client
from zbplan.client import ATTEMPTS, PassingError, bearer, patiently, retry_after_s
from zbplan.errors import ZbplanError

LATE_S = 1e6


@pytest.fixture(autouse=True)
def pauses(monkeypatch: pytest.MonkeyPatch) -> list[float]:
    """The pauses that are asked for, which pass at once."""
    asked: list[float] = []
    clock = SimpleNamespace(sleep=asked.append, monotonic=lambda: sum(asked))
    monkeypatch.setattr(client, "time", clock)
    return asked


class Attempt:
    """Fails as often as it is told."""

    def __init__(self, failures: int, after_s: float = 0.0) -> None:
        self.made = 0
        self._failures = failures
        self._after_s = after_s

    def __call__(self) -> int:
        self.made += 1
        if self.made <= self._failures:
            raise PassingError(f"failure {self.made}", self._after_s)
        return self.made


def test_an_attempt_that_goes_well_is_made_once(pauses: list[float]) -> None:
    assert patiently(Attempt(0), ZbplanError, deadline_s=LATE_S) == 1
    assert pauses == []


def test_pauses_double_and_are_cut_short(pauses: list[float]) -> None:
    assert patiently(Attempt(3), ZbplanError, deadline_s=LATE_S) == 4
    assert all(longest / 2 <= pause <= longest for pause, longest in zip(pauses, (0.5, 1.0, 2.0), strict=True))


def test_nobody_comes_back_before_the_service_wants_it_to(pauses: list[float]) -> None:
    patiently(Attempt(1, after_s=7.0), ZbplanError, deadline_s=LATE_S)
    assert 7.25 <= pauses[0] <= 7.5


def test_the_last_failure_is_told() -> None:
    endless = Attempt(ATTEMPTS)
    with pytest.raises(ZbplanError, match=rf"failure {ATTEMPTS} .asked {ATTEMPTS} times"):
        patiently(endless, ZbplanError, deadline_s=LATE_S)
    assert endless.made == ATTEMPTS


def test_no_attempt_begins_behind_the_deadline(pauses: list[float]) -> None:
    late = Attempt(ATTEMPTS, after_s=1.0)
    with pytest.raises(ZbplanError, match=r"failure 2$"):
        patiently(late, ZbplanError, deadline_s=2.0)
    assert (late.made, len(pauses)) == (2, 1)


@pytest.mark.parametrize(("given", "seconds"), [({}, 0), ({"retry-after": "5"}, 5), ({"retry-after": "tomorrow"}, 0)])
def test_only_seconds_of_retry_after_count(given: dict[str, str], seconds: float) -> None:
    assert retry_after_s(given) == seconds


def test_a_token_goes_in_a_header() -> None:
    assert bearer("abc", ZbplanError) == {"authorization": "Bearer abc"}
    assert bearer(None, ZbplanError) == {}


@pytest.mark.parametrize("token", ["schlüssel", "two\nlines"])
def test_a_token_that_no_header_can_carry_is_refused(token: str) -> None:
    with pytest.raises(ZbplanError, match="found a token with characters that no header can carry"):
        bearer(token, ZbplanError)
