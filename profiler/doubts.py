"""How sure a measurement is: too few or too scattered samples are refused, or kept and told."""

from __future__ import annotations

from collections.abc import Iterator, Sequence

from profiler.errors import MeasurementError
from profiler.stage import StageFigures
from zbplan.duration import Duration

ADVICE = (
    "measure on machines that do nothing else, pin processes to cores, take more samples (--samples), or keep it as "
    "it is (--force), which marks the profile"
)
SHOWN = 8


def doubts(figures: Sequence[StageFigures], transfers: Sequence[tuple[Duration, Duration]], part: str) -> list[str]:
    """Return one sentence per median that is not to be trusted."""
    return [*_of_stages(figures, part), *_of_transfers(figures, transfers, part)]


def refuse_or_keep(found: list[str], *, force: bool) -> list[str]:
    """Return what ``--force`` lets pass.

    Raises
    ------
    MeasurementError
        Without ``--force``, when there is anything.
    """
    if found and not force:
        more = [f"and {len(found) - SHOWN} more"] if len(found) > SHOWN else []
        message = "; ".join([*found[:SHOWN], *more])
        raise MeasurementError(f"{message}: {ADVICE}", on_every_rank=True)
    return found


def _of_stages(figures: Sequence[StageFigures], part: str) -> Iterator[str]:
    for index, figure in enumerate(figures):
        for field, duration in figure.times.items():
            doubt = duration.doubt(figure.busy_ms)
            if doubt is not None:
                yield f"{part} {index}, {field}: {doubt}"


def _of_transfers(
    figures: Sequence[StageFigures], transfers: Sequence[tuple[Duration, Duration]], part: str
) -> Iterator[str]:
    for index, pair in enumerate(transfers):
        busy_ms = min(figure.busy_ms for figure in figures[index : index + 2])
        for way, duration in zip(("forward", "backward"), pair, strict=True):
            doubt = duration.doubt(busy_ms)
            if doubt is not None:
                yield f"{part}s {index} and {index + 1}, t_comm_ms {way}: {doubt}"
