"""The named errors of running a plan; each says what was found, what was needed, and what to do."""

from __future__ import annotations

from collections.abc import Sequence

from zbplan.errors import ZbplanError, root


class FetchError(ZbplanError):
    """Rank 0 could not get the plan; every rank raises it."""


class PlanDigestError(ZbplanError):
    """Ranks of one job hold different plans; every rank raises it."""


class JobMismatchError(ZbplanError):
    """The plan does not fit the job on some rank.

    Every rank raises it, but for what only a rank's own step can find: its batch, or reentrant checkpointing.

    Attributes
    ----------
    findings
        One sentence per thing that does not fit, with the rank that found it.
    """

    def __init__(self, findings: Sequence[str]) -> None:
        self.findings = tuple(findings)
        super().__init__("the plan does not fit the job: " + "; ".join(self.findings))


class TransferOrderError(ZbplanError):
    """Sends and receives that would hand a tensor to the wrong op, or to none."""


class TransferShapeError(ZbplanError):
    """A tensor between stages has not the shape and type that were agreed on in the first step."""

    def __init__(self, found: str, needed: str) -> None:
        super().__init__(
            f"found {found}; needed {needed}, as in the first microbatch: pad to a fixed shape, or build a new "
            "PlanSchedule for the new one"
        )


class TraceError(ZbplanError):
    """The steps that the ranks noted cannot be put together."""


class OpError(ZbplanError):
    """An op of the plan failed on this rank.

    Attributes
    ----------
    rank, op
        Where, and which op as text, such as ``W(stage 2, microbatch 5)``.
    """

    def __init__(self, rank: int, op: str, error: BaseException) -> None:
        self.rank = rank
        self.op = op
        super().__init__(f"rank {rank}, {op}: found {root(error)}; needed an op that runs")


class StepError(ZbplanError):
    """A step failed on this rank outside any op, most often because another rank is gone."""

    def __init__(self, rank: int, error: BaseException) -> None:
        self.rank = rank
        super().__init__(
            f"rank {rank}, outside any op: found {root(error)}; needed a step that every rank runs to its end: "
            "look for the rank that failed first"
        )
