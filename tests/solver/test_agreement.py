"""Program, CP-SAT and brute force agree on every shape of up to three devices and three microbatches."""

from __future__ import annotations

from itertools import product

import pytest

from heuristic import best_per_placement
from solver.bounds import lower_bound
from solver.cp_sat import Settings, solve_cp_sat
from solver.ilp import MARGIN, solve_ilp
from tests.solver.exact import optimum
from tests.solver.tiny import Shape, tiny_problem
from zbplan.plan import Plan
from zbplan.validate import check

PLACEMENTS = {"linear": 1, "v": 2, "interleaved": 2}
"""Stages per device."""

SHAPES: list[Shape] = [
    (placement, devices, devices * PLACEMENTS[placement], microbatches)
    for placement, devices, microbatches in product(PLACEMENTS, (1, 2, 3), (1, 2, 3))
    if not (placement == "interleaved" and devices == 1)
]

MOST_CELLS = 6
"""Stages times microbatches up to which brute force takes less than a second."""


@pytest.mark.parametrize("shape", SHAPES, ids=lambda shape: "-".join(map(str, shape)))
def test_all_three_find_the_same_optimum(shape: Shape) -> None:
    for seed in range(2):
        problem = tiny_problem(seed, shape)
        instance, placement = problem.instance(), problem.placements[0]
        start = best_per_placement(problem)[0]
        bound = lower_bound(instance).ticks
        exact = solve_cp_sat(instance, start.orders, bound=bound, time_limit_s=60, settings=Settings(workers=1))
        assert exact.status == "OPTIMAL", seed
        assert exact.orders is not None
        plan = check(Plan.build(problem, placement, exact.orders, method="cp_sat"))
        best = instance.clock.units(plan.metrics.iteration_ms)
        assert bound <= best == exact.bound <= start.measures.iteration, seed
        program = solve_ilp(instance, start.orders, bound=bound, time_limit_s=3)
        assert program.bound <= best, seed
        if program.orders is not None:
            found = check(Plan.build(problem, placement, program.orders, method="ilp"))
            proven = program.bound >= best * (1 - 2 * MARGIN) - 1
            assert best <= instance.clock.units(found.metrics.iteration_ms), seed
            assert not proven or best == instance.clock.units(found.metrics.iteration_ms), seed
        if instance.stages * instance.microbatches <= MOST_CELLS:
            assert optimum(instance) == best, seed
