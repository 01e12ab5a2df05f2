"""PyTorch CSV: schedules as ``torch.distributed.pipelining`` writes and reads them.

Row i is what rank i runs, a cell such as ``2F0`` is an action: stage, kind, microbatch. ``compute_only`` has ops only;
an empty cell is a step without op. ``compute_comms`` has sends and receives as well. The format carries no times, no
placement, no version and no problem: what a plan says beyond its orders is lost.

PyTorch writes I for the input gradient (our B) and B for the fused backward (our BW). Cells hold our names; only this
module knows both.
"""

from __future__ import annotations

import csv
import io
import re
from collections.abc import Iterable, Iterator, Sequence
from typing import NamedTuple

from zbplan.errors import Finding, InvalidInputError
from zbplan.instance import KINDS, Orders
from zbplan.placement import Placement, devices_of
from zbplan.plan import Plan
from zbplan.problem import Problem

_OPS = {"F": "F", "I": "B", "W": "W", "B": "BW"}
_TRANSFERS = ("SEND_F", "RECV_F", "SEND_B", "RECV_B")
_OF_STAGE = ("UNSHARD", "RESHARD", "REDUCE_GRAD")
_TEXT_OF = {ours: torchs for torchs, ours in _OPS.items()}
_OVERLAP = "OVERLAP_F_B"

_SINGLE = re.compile(rf"(\d{{1,9}})({'|'.join((*_TRANSFERS, *_OF_STAGE, *_OPS))})(\d{{0,9}})", re.ASCII)
_OVERLAPPED = re.compile(rf"\(([^()]*)\){_OVERLAP}")
_NEEDED = "a cell such as 2F0, 2I0, 2W0, 2B0, 2SEND_F0, 2UNSHARD or (2F0;1B0)OVERLAP_F_B"


class Cell(NamedTuple):
    """One action: an op, a transfer, or what concerns a whole stage (``microbatch`` is None).

    An overlapped pair has the kind ``OVERLAP_F_B``, no stage (−1), and its two ops as ``parts``.
    """

    kind: str
    stage: int
    microbatch: int | None = None
    parts: tuple[Cell, ...] = ()

    def __str__(self) -> str:
        if self.parts:
            return f"({';'.join(map(str, self.parts))}){self.kind}"
        return f"{self.stage}{_TEXT_OF.get(self.kind, self.kind)}{'' if self.microbatch is None else self.microbatch}"


Rows = list[list[Cell | None]]
"""Per rank its cells; None is a step without action."""


def read(text: str) -> Rows:
    """Return the cells of a CSV; spaces around a cell are no part of it.

    Raises
    ------
    InvalidInputError
        Naming rank and column of every cell that is none.
    """
    table = list(csv.reader(io.StringIO(text)))
    parsed = [[_parse(cell.strip()) for cell in row] for row in table]
    findings = [
        Finding(_place(rank, column), repr(table[rank][column]), _NEEDED)
        for rank, row in enumerate(parsed)
        for column, cell in enumerate(row)
        if isinstance(cell, str)
    ]
    if not table:
        findings = [Finding("rank 0", "nothing", "a row of cells per rank")]
    if findings:
        raise InvalidInputError(findings)
    return [[cell for cell in row if not isinstance(cell, str)] for row in parsed]


def write(rows: Iterable[Sequence[Cell | None]]) -> str:
    """Return the CSV text of cells, which ``read`` and PyTorch turn back into them."""
    text = io.StringIO()
    csv.writer(text, lineterminator="\n").writerows(
        [["" if cell is None else str(cell) for cell in row] for row in rows]
    )
    return text.getvalue()


def from_plan(plan: Plan) -> Rows:
    """Return the ops of a plan as ``compute_only`` cells."""
    return [[Cell(*op) for op in zip(ops.kind, ops.stage, ops.microbatch, strict=True)] for ops in plan.devices]


def from_actions(actions: Iterable[Sequence[tuple[str, int, int]]]) -> Rows:
    """Return ``compute_comms`` cells of lists of ops and transfers (kind, stage, microbatch), one per device.

    A stage is gathered (UNSHARD) before its first op; behind its last one its gradients are reduced (REDUCE_GRAD, where
    PyTorch also divides them by the number of microbatches) and it is given up (RESHARD). PyTorch adds none of these to
    ``compute_comms``, and trains on gradients that are too large without them.
    """
    return [list(_with_stage_cells([Cell(*action) for action in own])) for own in actions]


def _with_stage_cells(cells: Sequence[Cell]) -> Iterator[Cell]:
    ops = [(at, cell.stage) for at, cell in enumerate(cells) if cell.kind in KINDS]
    last = {stage: at for at, stage in ops}
    first = {stage: at for at, stage in reversed(ops)}
    for at, cell in enumerate(cells):
        if first.get(cell.stage) == at:
            yield Cell("UNSHARD", cell.stage)
        yield cell
        if last.get(cell.stage) == at:
            yield Cell("REDUCE_GRAD", cell.stage)
            yield Cell("RESHARD", cell.stage)


def check_runs(plan: Plan) -> None:
    """Refuse a legal plan that PyTorch would run from a CSV, but train on wrong numbers.

    Raises
    ------
    InvalidInputError
        If the last stage runs an F before that of a lower microbatch: PyTorch takes the losses in the order in which
        they come for those of microbatches 0, 1, 2, ….
    """
    last = plan.requires.stages - 1
    device = devices_of(plan.placement)[last]
    columns = plan.devices[device]
    rows = enumerate(zip(columns.kind, columns.stage, columns.microbatch, strict=True))
    found = [(at, microbatch) for at, (kind, stage, microbatch) in rows if (kind, stage) == ("F", last)]
    for needed, (at, microbatch) in enumerate(found):
        if microbatch != needed:
            place = f"$.devices[{device}].microbatch[{at}]"
            what = f"F of the last stage on microbatch {microbatch} where {needed} would be next"
            advice = "microbatches in order there, since PyTorch keeps losses by order: run it with PlanSchedule"
            raise InvalidInputError([Finding(place, what, advice)])


def lost(plan: Plan) -> Iterator[str]:
    """Yield a sentence for each thing that a plan counts on and a CSV does not say."""
    if plan.asked.optimizer == "post_validated":
        yield (
            f"the plan's {plan.metrics.iteration_ms:g} ms count on a post-validated optimizer, which PyTorch has not: "
            "it will take its makespan or more; plan again with optimizer 'synchronous', or run it with PlanSchedule"
        )
    if plan.requires.engine_mode == "weight_grad_store" and any("W" in ops.kind for ops in plan.devices):
        yield (
            "the plan's times were measured with a weight-gradient store, and PyTorch's own split of I and W takes "
            "others: give every PipelineStage dw_builder=runtime_client.split(module)"
        )


def to_plan(rows: Rows, problem: Problem) -> Plan:
    """Return the plan that runs the ops of ``compute_only`` or ``compute_comms`` cells on a problem.

    Sends, receives and FSDP actions are left out, since every runtime makes its own. The plan is timed, not judged:
    ``zbplan.validate`` does that.

    Raises
    ------
    InvalidInputError
        Naming rank and column of an op that does not exist in the problem, that stands twice, or whose stage another
        rank runs too; or the op that is missing. Also where the problem leaves the cut of its layers open.
    DeadlockError
        If the ranks wait for each other for ever.
    """
    if problem.open_layers is not None:
        found_open = "'auto' with a profile of layers, and a CSV does not say how they were cut in stages"
        needed = "the problem of the cut that the CSV was made for, as zbplan partition -o writes it"
        raise InvalidInputError([Finding("$.placement", found_open, needed)])
    found = list(_ops(rows))
    findings = [*_wrong_ops(found, problem), *_missing_ops(found, problem)]
    if len(rows) != problem.devices:
        findings.insert(0, Finding("$.devices", f"{len(rows)} ranks", f"{problem.devices}, one per device"))
    if findings:
        raise InvalidInputError(findings)
    placement: Placement = [
        sorted({cell.stage for rank, _, cell in found if rank == device}) for device in range(len(rows))
    ]
    code = problem.instance(placement).code
    orders = [
        [code(KINDS.index(cell.kind), cell.stage, cell.microbatch or 0) for rank, _, cell in found if rank == device]
        for device in range(len(rows))
    ]
    return Plan.build(problem, placement, Orders.of(orders), method="csv")


def _parse(text: str) -> Cell | str | None:
    """Return a cell, None for an empty one, or the text itself if it is neither."""
    if not text:
        return None
    overlapped = _OVERLAPPED.fullmatch(text)
    if overlapped:
        parts = [_parse(part.strip()) for part in overlapped[1].split(";")]
        cells = tuple(part for part in parts if isinstance(part, Cell) and part.kind in KINDS)
        return Cell(_OVERLAP, -1, None, cells) if len(cells) == len(parts) else text
    single = _SINGLE.fullmatch(text)
    if not single or (single[2] in _OF_STAGE) == bool(single[3]):
        return text
    return Cell(_OPS.get(single[2], single[2]), int(single[1]), int(single[3]) if single[3] else None)


def _ops(rows: Rows) -> Iterator[tuple[int, int, Cell]]:
    """Yield rank, column and op of each op."""
    for rank, row in enumerate(rows):
        for column, cell in enumerate(row):
            if cell is not None and (cell.parts or cell.kind in KINDS):
                yield rank, column, cell


def _wrong_ops(found: list[tuple[int, int, Cell]], problem: Problem) -> Iterator[Finding]:
    stages, microbatches = problem.profile.stages, problem.microbatches
    seen: dict[tuple[str, int, int | None], str] = {}
    rank_of: dict[int, int] = {}
    for rank, column, cell in found:
        place = _place(rank, column)
        if cell.parts:
            yield Finding(place, str(cell), "ops that run one after the other: overlapped pairs are not supported yet")
            continue
        if cell.stage >= stages or (cell.microbatch or 0) >= microbatches:
            yield Finding(place, str(cell), f"a stage below {stages} and a microbatch below {microbatches}")
        if rank_of.setdefault(cell.stage, rank) != rank:
            yield Finding(place, str(cell), f"stage {cell.stage} on one rank: rank {rank_of[cell.stage]} runs it too")
        role = "B" if cell.kind == "BW" else cell.kind
        first = seen.setdefault((role, cell.stage, cell.microbatch), place)
        if first != place:
            yield Finding(place, str(cell), f"each op once: it stands at {first} already")


def _missing_ops(found: list[tuple[int, int, Cell]], problem: Problem) -> Iterator[Finding]:
    stands = {(cell.kind, cell.stage, cell.microbatch) for _, _, cell in found}
    for stage in range(problem.profile.stages):
        for microbatch in range(problem.microbatches):
            split = ("B", stage, microbatch) in stands
            needed = ["F", "B", "W"] if split else ["F", "BW"]
            for kind in needed:
                if (kind, stage, microbatch) not in stands:
                    yield Finding("$", f"no {Cell(kind, stage, microbatch)}", "every op of every microbatch")
                    return


def _place(rank: int, column: int) -> str:
    return f"rank {rank}, column {column}"
