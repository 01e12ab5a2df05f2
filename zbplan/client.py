"""Client: what all who ask the service do alike: show their token, and ask again where that may help."""

from __future__ import annotations

import random
import re
import time
from collections.abc import Callable, Mapping
from typing import TypeVar

ATTEMPTS = 4
"""How often a request is made that met no service, or one that is busy or breaks."""

FIRST_PAUSE_S = 0.5

WORTH_A_RETRY = (408, 425, 429, 500, 502, 503, 504)
"""The statuses of answers that may be others a little later."""

_SECONDS = re.compile(r"\d{1,6}")

Result = TypeVar("Result")


class PassingError(Exception):
    """A failure that may pass.

    Attributes
    ----------
    after_s
        How long the service wants to be left alone until then.
    """

    def __init__(self, text: str, after_s: float = 0.0) -> None:
        super().__init__(text)
        self.after_s = after_s


def patiently(attempt: Callable[[], Result], refusal: type[Exception], *, deadline_s: float) -> Result:
    """Return what an attempt returns, made again after pauses that double and are cut short at random.

    Many that fail together thus do not come back together. None comes back before the service wants it to.

    Parameters
    ----------
    attempt
        Raises ``PassingError`` where another attempt may help.
    refusal
        What to raise, with the text of the last failure, when none has.
    deadline_s
        By ``time.monotonic``; no attempt begins behind it, however long the service wants to be left alone.
    """
    longest_s = FIRST_PAUSE_S
    for made in range(1, ATTEMPTS + 1):
        try:
            return attempt()
        except PassingError as error:
            if made == ATTEMPTS:
                raise refusal(f"{error} (asked {ATTEMPTS} times)") from error
            pause_s = random.uniform(longest_s / 2, longest_s) + error.after_s  # noqa: S311 (no secret)
            if time.monotonic() + pause_s > deadline_s:
                raise refusal(str(error)) from error
        time.sleep(pause_s)
        longest_s *= 2
    raise AssertionError("unreachable")


def retry_after_s(headers: Mapping[str, str]) -> float:
    """Return the seconds of an answer's ``Retry-After``; 0 where there are none."""
    after = headers.get("retry-after", "")
    return float(after) if _SECONDS.fullmatch(after) else 0.0


def bearer(token: str | None, refusal: type[Exception]) -> dict[str, str]:
    """Return the headers that show a token, none without one; raises ``refusal`` for one that no header can carry."""
    if token and not (token.isascii() and token.isprintable()):
        raise refusal("found a token with characters that no header can carry; needed printable ASCII")
    return {"authorization": f"Bearer {token}"} if token else {}
