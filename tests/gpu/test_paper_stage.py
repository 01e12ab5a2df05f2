"""The profiler on a CUDA device: the code path that no other test runs."""

from __future__ import annotations

import pytest
import torch

from profiler import Options, gpt, measure, measure_layers
from profiler.models import PAPER_MODELS, Transformer
from runtime_client import split
from zbplan.profile import Profile

pytestmark = pytest.mark.skipif(not torch.cuda.is_available(), reason="found no CUDA device that torch can use")

SMALL = Transformer(name="small", blocks=4, hidden=256, heads=4, sequence=128, microbatch_size=2, vocabulary=1024)


def options(**changes: object) -> Options:
    return Options(
        **{"device": "cuda", "splitter": split, "warmup": 1, "steady": 3, "t_comm_ms": 0.0, "force": True} | changes
    )


@pytest.fixture(scope="module")
def paper() -> Profile:
    """The 1.5B model at microbatch 6, sequence 1024, in bf16, in 8 stages (paper, Table 3)."""
    model = gpt.staged_model(PAPER_MODELS["gpt-1.5b"], 8, dtype=torch.bfloat16)
    return measure(model, options(warmup=2, steady=5))


def test_m_w_of_the_papers_stage_is_table_1s(paper: Profile) -> None:
    size = PAPER_MODELS["gpt-1.5b"]
    sbh = size.sequence * size.microbatch_size * size.hidden
    print(f"M_W {paper.m_w_bytes[1]} bytes; Table 1: {3 * 32 * sbh}")
    assert paper.m_w_bytes[1] == pytest.approx(3 * 32 * sbh, rel=0.03)


def test_m_b_of_the_papers_stage_is_table_1s_without_the_attention_matrix(paper: Profile) -> None:
    size = PAPER_MODELS["gpt-1.5b"]
    sbh = size.sequence * size.microbatch_size * size.hidden
    print(f"M_B {paper.m_b_bytes[1]} bytes; Table 1 without 5as: {3 * 34 * sbh}")
    assert paper.m_b_bytes[1] == pytest.approx(3 * 34 * sbh, rel=0.05)


def test_the_papers_ratios_stand_beside_the_measured_ones(paper: Profile) -> None:
    f, b, w = (column[1] for column in (paper.t_f_ms, paper.t_b_ms, paper.t_w_ms))
    print(f"T_F : T_B : T_W = 1 : {b / f:.3f} : {w / f:.3f}; Table 9: 1 : {18.086 / 18.522:.3f} : {9.337 / 18.522:.3f}")
    assert min(f, b, w) > 0
    assert paper.environment["dtype"] == "bfloat16"
    assert paper.statistics.t_w_ms.count[1] == 5


@pytest.mark.parametrize("mode", ["weight_grad_store", "native_split", "fused"])
def test_the_allocator_says_what_following_every_storage_says(mode: str) -> None:
    model = gpt.staged_model(SMALL, 2)
    on_gpu = measure(model, options(engine_mode=mode))
    on_cpu = measure(model, options(engine_mode=mode, device="cpu"))
    for name in ("m_b_bytes", "m_w_bytes"):
        assert on_gpu.per_stage(name) == pytest.approx(on_cpu.per_stage(name), rel=0.05)
    assert on_gpu.per_stage("m_static_bytes") == on_cpu.per_stage("m_static_bytes")


def test_layers_sum_to_the_whole() -> None:
    summed = measure_layers(gpt.layered_model(SMALL), 2, options())
    whole = measure(gpt.staged_model(SMALL, 2), options())
    assert summed.per_stage("m_b_bytes") == pytest.approx(whole.per_stage("m_b_bytes"), rel=0.03)
