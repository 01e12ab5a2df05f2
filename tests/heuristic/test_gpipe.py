from __future__ import annotations

from heuristic.gpipe import gpipe
from tests.heuristic.problems import linear
from zbplan.problem import Problem
from zbplan.simulate import measure, simulate


def test_makespan_is_the_textbook_one() -> None:
    p, m = 4, 6
    instance = linear(p, m, 2, 2, 1, optimizer="synchronous").instance()
    measures = measure(instance, simulate(instance, gpipe(instance)))
    assert instance.clock.value(measures.makespan) == (m + p - 1) * (2 + 2 + 1)
    assert instance.memory.value(measures.peak[0]) == m


def test_a_device_with_several_stages_runs_them_forward_and_back() -> None:
    profile = {"stages": 4, "t_f_ms": 1, "t_b_ms": 1, "t_w_ms": 1, "t_comm_ms": 0, "m_b_bytes": 1, "m_w_bytes": 1}
    problem = Problem.parse({"profile": profile, "devices": 2, "microbatches": 1, "placement": "v"})
    instance = problem.instance()
    assert [instance.name(op) for op in gpipe(instance).on(0).tolist()] == [
        "F(stage 0, microbatch 0)",
        "F(stage 3, microbatch 0)",
        "BW(stage 3, microbatch 0)",
        "BW(stage 0, microbatch 0)",
    ]
