from __future__ import annotations

import pytest

from runtime_client.transfer_memory import peak_bytes
from tests.runtime_client.plans import one_f_one_b, open_plan, plan_of, problem_of, random_plan
from zbplan.instance import BW, F, Orders
from zbplan.placement import linear, v_shape


def test_without_the_size_of_a_transfer_it_is_the_plans_own_peak() -> None:
    for placement in (linear(3), v_shape(2)):
        plan = random_plan(placement, 4, seed=1)
        assert peak_bytes(plan) == plan.metrics.peak_bytes


@pytest.mark.parametrize("t_f_ms", [[1, 10], [10, 1]])
def test_inputs_that_arrive_ahead_of_their_f_count_from_their_receive(t_f_ms: list[int]) -> None:
    problem = problem_of(linear(2), 4, t_f_ms=t_f_ms, t_comm_ms=0, boundary_bytes=100, m_b_bytes=1000)
    code = problem.instance().code
    plan = plan_of(
        problem, Orders.of([[code(kind, stage, at) for kind in (F, BW) for at in range(4)] for stage in (0, 1)])
    )
    ahead = 3 if t_f_ms[1] > t_f_ms[0] else 0  # during the first F of stage 1, with one microbatch counted
    held = [1000 * (at + 1) + 100 * max(0, ahead - at) for at in range(4)]
    leaving = [4000 - 1000 * at + 100 * min(2, at) for at in range(4)]  # gradients on their way, two at most
    assert peak_bytes(plan)[1] == max(*held, *leaving)


def test_gradients_that_wait_for_their_b_and_those_that_leave_count() -> None:
    plan = plan_of(problem_of(linear(3), 6, boundary_bytes=100, m_b_bytes=1000), one_f_one_b(3, 6).orders())
    for found, planned in zip(peak_bytes(plan), plan.metrics.peak_bytes, strict=True):
        assert planned <= found <= planned + 100 * 6
    assert peak_bytes(plan)[1] > plan.metrics.peak_bytes[1]


def test_where_the_plan_cut_the_layers_the_transfers_are_those_between_its_stages() -> None:
    plan = open_plan()
    assert plan.planned.profile.boundary_bytes == [1, 3, 5, 0]
    given = plan_of(plan.planned, plan.orders())
    assert peak_bytes(plan) == peak_bytes(given) != plan.metrics.peak_bytes


def test_between_stages_of_one_device_nothing_is_sent() -> None:
    plan = random_plan([[0, 1]], 4, seed=2, boundary_bytes=100)
    assert peak_bytes(plan) == plan.metrics.peak_bytes
