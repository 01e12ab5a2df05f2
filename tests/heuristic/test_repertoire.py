from __future__ import annotations

from itertools import islice

import numpy as np
import pytest
from hypothesis import given, settings

from heuristic.list_schedule import NEVER, list_schedule, task_of
from heuristic.objective import iteration
from heuristic.repertoire import ONE_CHUNK, SEVERAL_CHUNKS, repertoire
from heuristic.variation import Variation
from heuristic.zb_greedy import zb_greedy
from tests.heuristic.problems import equal_times, linear, paper_problem, paper_rows
from tests.strategies import problems
from zbplan.instance import B, F
from zbplan.plan import Plan
from zbplan.problem import Problem
from zbplan.validate import validate


@settings(deadline=None, max_examples=40)
@given(problems(placements=("linear", "v", "interleaved")))
def test_every_rule_gives_a_legal_plan_of_any_problem(problem: Problem) -> None:
    instance = problem.instance()
    for policy in repertoire(Variation(instance)):
        orders = list_schedule(task_of(instance), policy)
        assert validate(Plan.build(problem, problem.placements[0], orders, method="planner")) == []


def test_one_chunk_and_several_have_rules_of_their_own() -> None:
    assert len(list(repertoire(Variation(linear(4, 6, 1, 1, 1).instance())))) == len(ONE_CHUNK)
    assert len(list(repertoire(Variation(equal_times("v", 4, 8, 6).instance())))) == len(SEVERAL_CHUNKS)


def test_no_rule_is_there_twice() -> None:
    assert len({*ONE_CHUNK}) == len(ONE_CHUNK)
    assert len({*SEVERAL_CHUNKS}) == len(SEVERAL_CHUNKS)


def test_rules_are_in_the_measure_of_the_instance() -> None:
    short, long = (Variation(linear(4, 12, f, f, f / 2, memory_limit=3).instance()) for f in (2, 20))
    for a, b in zip(repertoire(short), repertoire(long), strict=True):
        np.testing.assert_allclose(10 * a.key, b.key, atol=200)
        assert 10 * a.patience == pytest.approx(b.patience, abs=20)
        assert (a.slack[a.slack < NEVER] * 10).tolist() == pytest.approx(b.slack[b.slack < NEVER].tolist(), abs=20)


def test_keys_follow_a_microbatch_down_and_back() -> None:
    for policy in repertoire(Variation(linear(4, 12, 3, 2, 1, comm=1, memory_limit=3).instance())):
        first = policy.key[:, :, 0]
        if np.ptp(policy.key[F, 0]) > 0:
            assert (np.diff(first[F]) > 0).all()
            assert (np.diff(first[B]) < 0).all()


@pytest.mark.parametrize(("model", "limit"), [("1.5B", "0.75x"), ("6.2B", "0.5x"), ("6.2B", "0.75x")])
def test_a_few_rules_beat_the_grid_of_the_paper_where_memory_is_scarce(model: str, limit: str) -> None:
    row = next(row for row in paper_rows() if row["model"] == model)
    instance = paper_problem(row, memory_limit=limit, optimizer="post_validated").instance()
    task = task_of(instance)
    rules = islice(repertoire(Variation(instance)), 6)
    assert min(iteration(instance, list_schedule(task, rule)) for rule in rules) < 0.95 * iteration(
        instance, zb_greedy(instance)
    )
