from dataclasses import replace
from functools import partial
from types import SimpleNamespace

import pytest
import torch
import torch.distributed as dist
from torch import nn

from profiler import MeasurementError, Options, measure, measure_layers
from tests.profiler.emulated import (
    B_MS,
    F_MS,
    HELD,
    KEPT,
    W_MS,
    WIDTH,
    Broken,
    Emulated,
    layered_model,
    layers,
    model,
    scattered_model,
    split,
    staged_model,
)
from zbplan.errors import InvalidInputError
from zbplan.evidence import Samples
from zbplan.profile import Profile

ROW = WIDTH * 4
GIVEN = Options(warmup=1, steady=3, t_comm_ms=0.0)
SPLIT = Options(splitter=split, warmup=1, steady=5, t_comm_ms=0.0)


def test_one_process_measures_all_stages() -> None:
    profile = measure(staged_model(3), Options(splitter=split, warmup=1, steady=3, t_comm_ms=0.5))
    assert (profile.stages, profile.engine_mode, profile.t_comm_ms) == (3, "weight_grad_store", 0.5)
    for stage in range(3):
        factor = 1 + stage / 10
        assert profile.t_f_ms[stage] == pytest.approx(factor * F_MS, rel=1e-9)
        assert profile.t_b_ms[stage] == pytest.approx(factor * B_MS, rel=1e-9)
        assert profile.t_w_ms[stage] == pytest.approx(factor * W_MS, rel=1e-9)
    assert profile.m_b_bytes == [ROW + HELD + ROW, ROW + HELD + ROW, ROW + HELD + 4]
    assert profile.m_w_bytes == [KEPT] * 3
    assert profile.m_static_bytes == [8] * 3
    assert profile.boundary_bytes == [ROW, ROW, 0]
    assert not dist.is_initialized()


def test_a_profile_says_how_sure_it_is_and_reads_back_equal() -> None:
    profile = measure(model([nn.Linear(WIDTH, WIDTH)], environment={"microbatch_size": 1}), Options(warmup=1, steady=4))
    assert Profile.parse_json(profile.to_json()) == profile
    assert profile.engine_mode == "fused"
    assert profile.statistics is not None
    assert profile.statistics.t_f_ms == Samples(spread_ms=[0.0], count=[4])
    assert profile.statistics.t_w_ms == Samples(spread_ms=[0.0], count=[0])
    assert (profile.estimated, profile.forced) == ([], [])
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
    measure(model([first, Seer(2, 1)]), GIVEN)
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

    profile = measure(model([Fork(WIDTH, WIDTH), Join(WIDTH, WIDTH)]), GIVEN)
    assert profile.boundary_bytes == [ROW + 3 * 8, 0]


def test_transfers_between_stages_need_two_processes_or_a_figure() -> None:
    with pytest.raises(MeasurementError, match="found one process for 2 stages, which cannot measure T_comm"):
        measure(staged_model(2), Options(splitter=split))


@pytest.mark.parametrize("t_comm_ms", [-1.0, float("nan"), float("inf")])
def test_a_transfer_time_that_cannot_be_is_refused(t_comm_ms: float) -> None:
    with pytest.raises(MeasurementError, match=f"t_comm_ms: found {t_comm_ms}; needed a finite number"):
        Options(t_comm_ms=t_comm_ms)


def test_a_placement_that_does_not_fit_is_refused() -> None:
    with pytest.raises(InvalidInputError, match="found stages for 2 devices; needed 1 lists"):
        measure(staged_model(2), GIVEN, placement=[[0], [1]])


def test_a_failing_stage_is_named_and_leaves_no_process_group() -> None:
    with pytest.raises(MeasurementError, match="stage 0, BW: found RuntimeError: a hook said no"):
        measure(model([Broken()]), GIVEN)
    assert not dist.is_initialized()


def test_a_stage_that_does_not_build_is_named() -> None:
    def build() -> nn.Module:
        raise ValueError("no weights here")

    with pytest.raises(MeasurementError, match="stage 1, building and first F: found ValueError: no weights here"):
        measure(model([nn.Linear(WIDTH, WIDTH), build]), GIVEN)


def test_a_given_transfer_time_is_marked() -> None:
    assert measure(staged_model(1), SPLIT).estimated == ["t_comm_ms"]


def test_a_slow_first_step_changes_nothing() -> None:
    slow, steady = (measure(model([Emulated(first_ms=ms)]), SPLIT) for ms in (500.0, 0.0))
    assert slow == steady


def test_scattered_samples_are_refused() -> None:
    with pytest.raises(MeasurementError, match=r"stage 0, t_f_ms: found a spread of .* \(30%\) over 5 samples"):
        measure(scattered_model(1), SPLIT)


def test_scattered_samples_are_kept_by_force_and_marked() -> None:
    profile = measure(scattered_model(1), replace(SPLIT, force=True))
    assert profile.t_f_ms == [pytest.approx(F_MS)]
    assert any("stage 0, t_f_ms: found a spread" in sentence for sentence in profile.forced)


def test_too_few_samples_are_refused_before_anything_is_measured() -> None:
    with pytest.raises(MeasurementError, match="found 2 steady samples; needed 3 or more, or --force"):
        replace(SPLIT, steady=2)


def test_too_few_samples_are_kept_by_force_and_marked() -> None:
    profile = measure(staged_model(1), replace(SPLIT, steady=2, force=True))
    assert "stage 0, t_f_ms: found 2 steady samples; needed 3 or more" in profile.forced


def test_the_weight_gradient_store_needs_a_splitter() -> None:
    with pytest.raises(MeasurementError, match=r"found no splitter; needed one for weight_grad_store \(--splitter\)"):
        Options(engine_mode="weight_grad_store")


def test_an_unsplit_stage_is_marked() -> None:
    profile = measure(staged_model(2), replace(SPLIT, unsplit=[1]))
    assert profile.splittable == [True, False]
    assert profile.t_w_ms == [pytest.approx(W_MS), 0]


def test_cross_checks_are_kept() -> None:
    checks = {check.name: check for check in measure(staged_model(1), SPLIT).checks}
    assert checks["split_overhead"].found == pytest.approx(1)
    assert checks["b_without_w"].found == pytest.approx(B_MS / F_MS)
    assert checks["ops_in_microbatch"].found == pytest.approx(1)
    assert all(check.passed for check in checks.values())


def test_identical_layers_are_measured_once() -> None:
    runs = []

    class Counted(nn.Linear):
        def forward(self, x):
            runs.append(None)
            return super().forward(x)

    def count(number: int) -> int:
        runs.clear()
        measure_layers(layers([partial(Counted, WIDTH, WIDTH) for _ in range(number)]), 1, GIVEN)
        return len(runs)

    assert count(11) - count(5) == 6  # once through each for its output, and no more


def test_layers_that_differ_in_any_way_are_measured_each() -> None:
    profile = measure_layers(layers([Emulated(factor=factor) for factor in (1.0, 2.0, 3.0, 1.0)]), 2, SPLIT)
    assert profile.layers is not None
    assert profile.layers.t_f_ms == [pytest.approx(factor * F_MS) for factor in (1, 2, 3, 1)]
    assert profile.t_f_ms == [pytest.approx(3 * F_MS), pytest.approx(4 * F_MS)]


@pytest.mark.parametrize("starts", [[0], [0, 1], [0, 2], [0, 1, 2, 3]])
def test_the_sum_over_layers_is_what_a_cut_takes_as_a_whole(starts: list[int]) -> None:
    summed = measure_layers(layered_model(), 1, SPLIT).cut(starts)
    whole = measure(layered_model().cut(starts), replace(SPLIT, splitter=split_all))
    for name in ("t_f_ms", "t_b_ms", "t_w_ms", "t_bw_ms", "m_w_bytes", "m_static_bytes", "boundary_bytes"):
        assert summed.per_stage(name) == pytest.approx(whole.per_stage(name))
    assert summed.per_stage("m_b_bytes") == whole.per_stage("m_b_bytes")


def split_all(module: nn.Module):
    takes = [split(layer) for layer in module.modules() if isinstance(layer, Emulated)]

    def take():
        runs = [each() for each in takes]
        return lambda: [run() for run in runs]

    return take


@pytest.mark.parametrize("stages", [0, 5])
def test_layers_make_no_more_stages_than_they_are(stages: int) -> None:
    with pytest.raises(MeasurementError, match=f"found {stages} stages of 4 layers; needed 1 to 4"):
        measure_layers(layered_model(), stages, SPLIT)


def test_progress_is_told_of_each_stage() -> None:
    told = []
    measure(staged_model(3), replace(SPLIT, progress=SimpleNamespace(advance=told.append)))
    assert told == ["stage 0 of 3", "stage 1 of 3", "stage 2 of 3"]
