"""Layers: the solve of a problem that leaves the cut of its model's layers open."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import replace

from heuristic import Cut, better_cuts
from solver.cuts import CutAnswers
from solver.lane import Lane
from solver.request import Request
from solver.search import Search, running
from solver.stages import ELSEWHERE, begin, improve, start_from
from zbplan.errors import ZbplanError
from zbplan.placement import Placement
from zbplan.plan import PartRun, Plan

CUTTING = 0.8
"""Part of the time that the search for cuts may take where other parts follow it."""


def solve_layers(request: Request, warm_start: Plan | None) -> Plan:
    """Answer on a good cut at once, search for better cuts, and solve the best for what is left of the time."""
    cuts = better_cuts(request.constructive, stop=lambda: _has_cut_enough(request), hurry=request.is_late)
    solving = _LayerSolve(request, next(cuts))
    if warm_start is not None:
        solving.start_from(warm_start)
    if not request.at_once:
        solving.take(cuts)
        solving.improve_best()
    return solving.answer


def _has_cut_enough(request: Request) -> bool:
    return request.budget.is_spent(part=CUTTING if request.parts else 1)


class _LayerSolve:
    """The answers so far, at first on one cut, and what the parts did."""

    def __init__(self, request: Request, cut: Cut) -> None:
        self._request = request
        self._answers = CutAnswers(request.problem, self._planned(cut), cut.starts, request.on_incumbent)
        self._runs: list[PartRun] = []
        if not request.is_late():
            self._begin(cut.starts, cut.placement)

    @property
    def answer(self) -> Plan:
        """The best answer, and what the parts did."""
        return self._answers.best.with_parts(self._runs)

    def start_from(self, plan: Plan) -> None:
        """Try the orders of a plan on its own cut, or on the best one where its stages were given."""
        at = self._answers.best if plan.requires.starts is None else plan
        with running(self._runs, "warm_start") as words:
            if at.placement not in self._request.problem.placements:
                words.append(ELSEWHERE)
                return
            try:
                search = self._begin(at.requires.starts or (), at.placement)
            except ZbplanError as error:
                words.append(f"not legal here: {error}")
            else:
                words.append(start_from(search, plan))

    def take(self, cuts: Iterable[Cut]) -> None:
        """Answer with each better cut that is found."""
        with running(self._runs, "cuts") as words:
            found = 0
            for cut in cuts:
                self._answers.offer(self._planned(cut), cut.starts)
                found += 1
            words.append(f"{found or 'none'} better{', then stopped' if _has_cut_enough(self._request) else ''}")

    def improve_best(self) -> None:
        """Solve the best cut."""
        if not self._request.budget.is_spent():
            search = self._begin(self._answers.starts, self._answers.plan.placement)
            answer = improve(search, self._request.parts)
            self._answers.settle(answer)
            self._runs += answer.provenance.parts

    def _planned(self, cut: Cut) -> Plan:
        return Lane.of(cut.problem, cut.built, self._request.bounding()).answer

    def _begin(self, starts: Sequence[int], placement: Placement) -> Search:
        """Begin to search on a cut, from the best plan if that stands on it; what is found becomes an answer."""
        on_cut = replace(
            self._request,
            problem=self._request.problem.cut(starts, placement),
            on_incumbent=lambda plan, _: self._answers.offer(plan, starts),
        )
        return begin(on_cut, self._answers.on(starts, placement))
