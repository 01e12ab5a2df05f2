"""The named errors of zbplan: each says what was found, what was needed, and what to do."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass


@dataclass(frozen=True)
class Finding:
    """One thing that is wrong with an input.

    Attributes
    ----------
    path
        Where, as a JSON path such as ``$.profile.t_f_ms[3]``.
    found
        What stands there, as short text that is itself free of NaN.
    needed
        What would have been right.
    """

    path: str
    found: str
    needed: str

    def __str__(self) -> str:
        return f"{self.path}: found {self.found}; needed {self.needed}"


class ZbplanError(Exception):
    """Base of every error that zbplan raises on purpose."""


class InvalidInputError(ZbplanError):
    """An input that is refused at the edge, with all its findings."""

    def __init__(self, findings: Sequence[Finding]) -> None:
        self.findings = tuple(findings)
        super().__init__("\n".join(str(finding) for finding in self.findings))


class InfeasibleError(ZbplanError):
    """No legal plan exists under the memory limit.

    Attributes
    ----------
    smallest_limit_bytes
        Per device, the smallest memory limit (static memory included) under which a plan exists.
    """

    def __init__(
        self,
        limit_bytes: Sequence[float | None],
        smallest_limit_bytes: Sequence[float],
        why: str = "memory limit too small for any plan",
    ) -> None:
        self.limit_bytes = tuple(limit_bytes)
        self.smallest_limit_bytes = tuple(smallest_limit_bytes)
        short = [
            f"device {device} has {limit:.15g} and needs {smallest:.15g}"
            for device, (limit, smallest) in enumerate(zip(limit_bytes, smallest_limit_bytes, strict=True))
            if limit is not None and limit < smallest
        ]
        shown = _first(short, "; ")
        super().__init__(f"{why}, in bytes: {shown}; raise memory_limit to these values")


class MethodError(ZbplanError):
    """The named method cannot make a legal plan for this problem; other methods may."""

    def __init__(self, method: str, reason: str, instead: Sequence[str] = ()) -> None:
        self.method = method
        self.reason = reason
        self.instead = tuple(instead)
        advice = f"; methods that can: {', '.join(instead)}" if instead else ""
        super().__init__(f"method {method!r}: {reason}{advice}")


class DeadlockError(ZbplanError):
    """Orders that wait for each other for ever."""

    def __init__(self, waiting: Sequence[str]) -> None:
        self.waiting = tuple(waiting)
        super().__init__("the orders deadlock: " + _first(self.waiting, "; "))


class InvalidPlanError(ZbplanError):
    """A plan that ``validate`` found wrong; ``violations`` lists every way."""

    def __init__(self, violations: Sequence[object]) -> None:
        self.violations = tuple(violations)
        super().__init__(_first([str(violation) for violation in self.violations], "\n", 20))


class RankGoneError(ZbplanError):
    """What all ranks do together failed on this rank, most often because another rank is gone."""

    def __init__(self, rank: int, doing: str, error: BaseException) -> None:
        self.rank = rank
        super().__init__(
            f"rank {rank}, {doing}: found {root(error)}; needed every rank of the group to take part: look for the "
            "rank that failed first"
        )


def root(error: BaseException) -> str:
    """Return the error that others were raised from, on one line."""
    while error.__cause__ is not None:
        error = error.__cause__
    return f"{type(error).__name__}: {' '.join(str(error).split())}"


def _first(texts: Sequence[str], separator: str, count: int = 4) -> str:
    more = [f"and {len(texts) - count} more"] if len(texts) > count else []
    return separator.join([*texts[:count], *more])
