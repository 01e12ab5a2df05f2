from __future__ import annotations

from itertools import islice

import numpy as np
import pytest

from solver.bounds import lower_bound, wave_counts
from solver.wave_search import WaveSearch
from tests.heuristic.problems import linear, paper_problem, paper_rows
from zbplan.plan import Plan
from zbplan.validate import check


@pytest.mark.parametrize("optimizer", ["synchronous", "post_validated"])
@pytest.mark.parametrize("limit", ["1x", "2x"])
def test_a_grid_around_the_wave_reaches_the_bound_of_every_small_paper_row(limit: str, optimizer: str) -> None:
    for row in paper_rows():
        if row["microbatches"] > 64:
            continue
        problem = paper_problem(row, memory_limit=limit, optimizer=optimizer)
        instance = problem.instance()
        bound = lower_bound(instance).ticks
        counts = wave_counts(instance, bound)
        assert counts is not None
        search = islice(WaveSearch(instance, np.array(counts)).tries(), 2000)
        orders = next(orders for objective, orders in search if objective == bound)
        plan = check(Plan.build(problem, problem.placements[0], orders, method="waves"))
        assert instance.clock.units(plan.metrics.iteration_ms) == bound


def test_the_same_seed_tries_the_same_schedules() -> None:
    instance = linear(4, 8, 3, 3, 2, comm=0.5, memory_limit="1.5x").instance()
    counts = wave_counts(instance, lower_bound(instance).ticks)
    tries = [islice(WaveSearch(instance, np.array(counts)).tries(), 200) for _ in range(2)]
    first, second = ([objective for objective, _ in each] for each in tries)
    assert first == second
