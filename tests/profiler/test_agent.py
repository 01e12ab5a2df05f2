import pytest
import torch
import torch.distributed as dist
from torch import nn

from profiler import MeasurementError, measure
from tests.profiler.emulated import B_MS, F_MS, HELD, KEPT, W_MS, WIDTH, Broken, Emulated, model, split, staged_model
from zbplan.errors import InvalidInputError
from zbplan.profile import Profile

ROW = WIDTH * 4


def test_one_process_measures_all_stages() -> None:
    profile = measure(staged_model(3), splitter=split, warmup=1, steady=3, t_comm_ms=0.5)
    assert (profile.stages, profile.engine_mode, profile.t_comm_ms) == (3, "weight_grad_store", 0.5)
    for stage in range(3):
        factor = 1 + stage / 10
        assert profile.t_f_ms[stage] == pytest.approx(factor * F_MS, rel=0.25)
        assert profile.t_b_ms[stage] == pytest.approx(factor * B_MS, rel=0.25)
        assert profile.t_w_ms[stage] == pytest.approx(factor * W_MS, rel=0.25)
    assert profile.m_b_bytes == [ROW + HELD + ROW, ROW + HELD + ROW, ROW + HELD + 4]
    assert profile.m_w_bytes == [KEPT] * 3
    assert profile.m_static_bytes == [8] * 3
    assert profile.boundary_bytes == [ROW, ROW, 0]
    assert not dist.is_initialized()


def test_a_profile_says_how_sure_it_is_and_reads_back_equal() -> None:
    profile = measure(model([nn.Linear(WIDTH, WIDTH)], environment={"microbatch_size": 1}), warmup=1, steady=4)
    assert Profile.parse_json(profile.to_json()) == profile
    assert profile.engine_mode == "fused"
    statistics = profile.environment["statistics"]
    assert statistics["t_f_ms"]["samples"] == [4]
    assert statistics["t_w_ms"] == {"samples": [0], "spread_ms": [0.0]}
    assert profile.environment["microbatch_size"] == 1
    assert profile.environment["dtype"] == "float32"
    assert profile.environment["threads"] == torch.get_num_threads()


def test_stages_meet_the_real_output_of_the_stage_before() -> None:
    seen = []

    class Seer(nn.Linear):
        def forward(self, x):
            if not seen:
                seen.append((x.detach().clone(), x.requires_grad))
            return super().forward(x)

    first = nn.Linear(WIDTH, 2)
    measure(model([first, Seer(2, 1)]), warmup=1, steady=3, t_comm_ms=0.0)
    inputs, needs = seen[0]
    assert torch.equal(inputs, first(torch.ones(WIDTH)))
    assert needs


def test_a_boundary_may_carry_several_tensors() -> None:
    class Fork(nn.Linear):
        def forward(self, x):
            return super().forward(x), torch.ones(3, dtype=torch.int64)

    class Join(nn.Linear):
        def forward(self, x, counts):
            return super().forward(x) * counts.sum()

    profile = measure(model([Fork(WIDTH, WIDTH), Join(WIDTH, WIDTH)]), warmup=1, steady=3, t_comm_ms=0.0)
    assert profile.boundary_bytes == [ROW + 3 * 8, 0]


def test_transfers_between_stages_need_two_processes_or_a_figure() -> None:
    with pytest.raises(MeasurementError, match="found one process for 2 stages, which cannot measure T_comm"):
        measure(staged_model(2), splitter=split)


@pytest.mark.parametrize("t_comm_ms", [-1.0, float("nan"), float("inf")])
def test_a_transfer_time_that_cannot_be_is_refused(t_comm_ms: float) -> None:
    with pytest.raises(MeasurementError, match=f"t_comm_ms: found {t_comm_ms}; needed a finite number"):
        measure(model([Emulated(), Emulated()]), t_comm_ms=t_comm_ms)


def test_a_placement_that_does_not_fit_is_refused() -> None:
    with pytest.raises(InvalidInputError, match="found stages for 2 devices; needed 1 lists"):
        measure(staged_model(2), placement=[[0], [1]], t_comm_ms=0.0)


def test_a_failing_stage_is_named_and_leaves_no_process_group() -> None:
    with pytest.raises(MeasurementError, match="stage 0, BW: found RuntimeError: a hook said no"):
        measure(model([Broken()]), warmup=1, steady=3)
    assert not dist.is_initialized()


def test_a_stage_that_does_not_build_is_named() -> None:
    def build() -> nn.Module:
        raise ValueError("no weights here")

    with pytest.raises(MeasurementError, match="stage 1, building and first F: found ValueError: no weights here"):
        measure(model([nn.Linear(WIDTH, WIDTH), build]), t_comm_ms=0.0)
