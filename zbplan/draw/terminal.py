"""Terminal: a plan as a Gantt chart of letters, with or without colour."""

from __future__ import annotations

import math
from collections.abc import Iterator
from dataclasses import dataclass
from itertools import groupby

from rich.text import Text

from zbplan.draw.labels import bound_label, bytes_label, placement_label, span_label
from zbplan.plan import DeviceOps, Plan

LETTERS = {"F": "F", "B": "B", "W": "W", "BW": "X"}
STYLES = {"F": "white on blue", "B": "black on cyan", "W": "black on green", "BW": "black on magenta"}
MEANINGS = {"F": "forward", "B": "input gradient", "W": "weight gradient", "BW": "BW (both)"}

MAX_LINES = 48
MIN_COLUMNS = 20
TICK_COLUMNS = 10
HALF = 0.5 - 1e-9
"""Half of a column, less what rounding may take away."""

IDLE, MIXED = -1, -2
UNOWNED = {IDLE: " ", MIXED: "#"}


@dataclass(frozen=True)
class Window:
    """A stretch of time drawn on a number of terminal columns."""

    begin_ms: float
    end_ms: float
    columns: int

    @property
    def column_ms(self) -> float:
        """Milliseconds per column."""
        return (self.end_ms - self.begin_ms) / self.columns

    def split(self, bands: int) -> list[Window]:
        """Return equal parts, each as wide as the whole."""
        step = (self.end_ms - self.begin_ms) / bands
        return [
            Window(self.begin_ms + band * step, self.begin_ms + (band + 1) * step, self.columns)
            for band in range(bands)
        ]


def chart(plan: Plan, *, width: int, from_ms: float | None = None, to_ms: float | None = None) -> Iterator[Text]:
    """Yield the lines of a chart: what the plan is, a row per device, a time axis, and the legend.

    Where one row is too short to show every op and there are few devices, time goes on in further bands of rows.

    Parameters
    ----------
    plan
        A legal plan.
    width
        Terminal columns that a line may take.
    from_ms, to_ms
        The stretch of time to draw; None draws from the first start, to the last end.
    """
    drawn = _Chart(plan, width, from_ms, to_ms)
    yield from _header(plan)
    yield drawn.heading()
    for band in range(len(drawn.bands)):
        for device in range(len(plan.devices)):
            yield drawn.row(band, device)
        yield drawn.axis(band)
    yield from _legend(plan)
    yield from drawn.scale()


def span_ms(plan: Plan) -> tuple[float, float]:
    """Return the first start and the last end of a plan, in milliseconds."""
    return (
        min(min(ops.start_ms, default=0.0) for ops in plan.devices),
        max(max(ops.end_ms, default=0.0) for ops in plan.devices),
    )


def _header(plan: Plan) -> Iterator[Text]:
    metrics, problem = plan.metrics, plan.planned
    shape = f"{problem.devices} devices x {problem.microbatches} microbatches, {placement_label(plan.placement)}"
    yield Text(f"{plan.provenance.method}: {shape}", style="bold")
    objective = "longest device span" if problem.optimizer == "post_validated" else "makespan"
    yield Text(
        f"iteration {metrics.iteration_ms:.6g} ms ({objective}), bubble {metrics.bubble_rate:.1%}, "
        f"mean idle {metrics.mean_idle_rate:.1%}"
    )
    yield Text(bound_label(plan.bound))
    limits = problem.limits(plan.placement)
    limited = "none" if limits is None else span_label(bytes_label(limit) for limit in sorted(limits)) + " per device"
    yield Text(f"memory limit {limited}")


class _Chart:
    """The rows of a plan, cut into bands of equal time, with what stands beside them."""

    def __init__(self, plan: Plan, width: int, from_ms: float | None, to_ms: float | None) -> None:
        self._plan = plan
        self._notes = _notes(plan)
        self._label = len(str(len(plan.devices) - 1))
        columns = max(MIN_COLUMNS, width - self._label - len(self._notes[0]) - 4)
        self._window = _window(plan, from_ms, to_ms, columns)
        self.bands = self._window.split(_band_count(plan, self._window))
        self._owners = [[_owners(ops, band) for ops in plan.devices] for band in self.bands]

    def heading(self) -> Text:
        """Return the line above the peaks and idle shares."""
        return Text(f"{'':{self._label}}  {'':{self._window.columns}}  {self._notes[0]}", style="dim")

    def row(self, band: int, device: int) -> Text:
        """Return the row of a device; in the first band with its peak and idle share."""
        note = f" {self._notes[device + 1]}" if band == 0 else ""
        begun = self._owners[band - 1][device][-1] if band else IDLE
        ops = self._ops(device, self._owners[band][device], begun)
        return Text.assemble(f"{device:>{self._label}} |", ops, "|", note)

    def axis(self, band: int) -> Text:
        """Return the line of round times under a band."""
        return Text(f"{'':{self._label}}  {_axis(self.bands[band])}", style="dim")

    def scale(self) -> Iterator[Text]:
        """Say what a column stands for, and how many ops are too short to be seen."""
        yield Text(f"a column is {self.bands[0].column_ms:.3g} ms")
        begin, end = self._window.begin_ms, self._window.end_ms
        shown = inside = 0
        for device, ops in enumerate(self._plan.devices):
            shown += len({owner for band in self._owners for owner in band[device]} - UNOWNED.keys())
            times = zip(ops.start_ms, ops.end_ms, strict=True)
            inside += sum(start < end and stop > begin and stop > start for start, stop in times)
        if shown < inside:
            yield Text(f"{inside - shown} of {inside} ops are too short to show: --from-ms and --to-ms draw a part")

    def _ops(self, device: int, owners: list[int], begun: int) -> Text:
        """Return the ops of a device in a band; ``begun`` stands at the end of the band before."""
        ops, first_stage = self._plan.devices[device], self._plan.placement[device][0]
        row = Text()
        for at, run in groupby(owners):
            length = len(list(run))
            if at in UNOWNED:
                row.append(UNOWNED[at] * length)
                continue
            letter = LETTERS[ops.kind[at]]
            letter = letter if ops.stage[at] == first_stage else letter.lower()
            label = f"{letter}{ops.microbatch[at]}"
            shown = "" if not row and at == begun else label if len(label) <= length else letter
            row.append(shown.ljust(length, "-"), style=STYLES[ops.kind[at]])
        return row


def _notes(plan: Plan) -> list[str]:
    """Return the heading, then one text per device: its memory peak and the share of the iteration it is idle."""
    total = plan.metrics.iteration_ms
    idle = [1 - busy / total if total else 0.0 for busy in plan.metrics.busy_ms]
    rows = [("peak", "idle"), *zip(map(bytes_label, plan.metrics.peak_bytes), (f"{s:.1%}" for s in idle), strict=True)]
    left, right = (max(len(row[column]) for row in rows) for column in (0, 1))
    return [f"{peak:>{left}} {share:>{right}}" for peak, share in rows]


def _window(plan: Plan, from_ms: float | None, to_ms: float | None, columns: int) -> Window:
    begin, end = span_ms(plan)
    begin = begin if from_ms is None else max(begin, from_ms)
    end = end if to_ms is None else min(end, to_ms)
    return Window(begin, end if end > begin else begin + 1, columns)


def _band_count(plan: Plan, window: Window) -> int:
    """Return in how many bands the short ops are a column wide, or as many as fit on a screen."""
    lengths = sorted(end - start for ops in plan.devices for start, end in zip(ops.start_ms, ops.end_ms, strict=True))
    short = next((length for length in lengths[len(lengths) // 4 :] if length > 0), math.inf)
    wanted = math.ceil(min(window.column_ms / short, MAX_LINES))
    return max(1, min(wanted, MAX_LINES // (len(plan.devices) + 1)))


def _owners(ops: DeviceOps, window: Window) -> list[int]:
    """Return, per column, the op that stands for it, ``IDLE`` or ``MIXED``.

    It is the longest op there of the kind that takes at least half of what is busy.
    """
    share = {kind: [0.0] * window.columns for kind in set(ops.kind)}
    longest = {kind: [(0.0, IDLE)] * window.columns for kind in share}
    for at, (start_ms, end_ms) in enumerate(zip(ops.start_ms, ops.end_ms, strict=True)):
        start, end = ((time - window.begin_ms) / window.column_ms for time in (start_ms, end_ms))
        for column in range(max(0, math.floor(start)), min(window.columns, math.ceil(end))):
            covered = min(end, column + 1) - max(start, column)
            share[ops.kind[at]][column] += covered
            longest[ops.kind[at]][column] = max(longest[ops.kind[at]][column], (covered, -at))
    return [_owner(share, longest, column) for column in range(window.columns)]


def _owner(share: dict[str, list[float]], longest: dict[str, list[tuple[float, int]]], column: int) -> int:
    busy = sum(shares[column] for shares in share.values())
    if busy < HALF:
        return IDLE
    kind = max(sorted(share), key=lambda kind: share[kind][column])
    return -longest[kind][column][1] if share[kind][column] >= HALF * busy else MIXED


def _axis(window: Window) -> str:
    """Return round times under the columns at which they are."""
    step = _round_up(window.column_ms * TICK_COLUMNS)
    line = ""
    for index in range(math.ceil(window.begin_ms / step), math.floor(window.end_ms / step) + 1):
        column = round((index * step - window.begin_ms) / window.column_ms)
        mark = f"|{index * step:.6g}"
        if column >= len(line) and column + len(mark) <= window.columns:
            line = line.ljust(column) + mark
    return f"{line.ljust(window.columns)} ms"


def _round_up(value: float) -> float:
    """Return the least of 1, 2, 5, 10, 20, 50 … that is not below a value."""
    power = 10.0 ** math.floor(math.log10(value))
    return float(next(power * digit for digit in (1, 2, 5, 10, 20) if power * digit >= value))


def _legend(plan: Plan) -> Iterator[Text]:
    line = Text()
    used = {kind for ops in plan.devices for kind in set(ops.kind)}
    for kind in (kind for kind in LETTERS if kind in used):
        line.append(LETTERS[kind], style=STYLES[kind]).append(f" {MEANINGS[kind]}  ")
    yield line.append("# mixed  blank idle")
    if any(len(stages) > 1 for stages in plan.placement):
        yield Text("small letters: a device's later stages")
