import pytest
import torch

from profiler import Options, gpt, measure, measure_layers
from profiler.models import PAPER_MODELS, Transformer
from runtime_client import split

SIZE = Transformer(name="tiny", blocks=4, hidden=32, heads=4, sequence=16, microbatch_size=2, vocabulary=64)
OPTIONS = Options(splitter=split, warmup=1, steady=3, t_comm_ms=0.0)


@pytest.mark.parametrize(("stages", "blocks"), [(1, [4]), (2, [2, 2]), (3, [1, 2, 1])])
def test_stages_hold_even_shares_with_embedding_and_head_counted(stages: int, blocks: list[int]) -> None:
    model = gpt.staged_model(SIZE, stages)
    built = [model.build(stage) for stage in range(stages)]
    assert [sum(isinstance(layer, gpt.Block) for layer in stage) for stage in built] == blocks
    assert isinstance(built[0][0], gpt.Embedding)
    assert isinstance(built[-1][-1], gpt.Head)


def test_a_block_has_the_parameters_that_the_estimate_counts() -> None:
    block = gpt.builders(SIZE)[1]()
    assert sum(parameter.numel() for parameter in block.parameters()) == 12 * 32**2 + 13 * 32


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
def test_bytes_are_those_of_table_1_without_dropout_and_attention_matrix(dtype: torch.dtype) -> None:
    profile = measure(gpt.staged_model(SIZE, 3, dtype=dtype), OPTIONS)
    one = SIZE.sequence * SIZE.microbatch_size * SIZE.hidden * dtype.itemsize
    blocks = 2
    assert profile.m_w_bytes[1] == blocks * 16 * one  # 32sbh in two-byte numbers
    assert blocks * 16 * one <= profile.m_b_bytes[1] <= blocks * 17.5 * one
    assert profile.boundary_bytes == [one, one, 0]


def test_layers_of_one_kind_are_measured_once_and_sum_to_the_whole() -> None:
    summed = measure_layers(gpt.layered_model(SIZE), 3, OPTIONS)
    whole = measure(gpt.staged_model(SIZE, 3), OPTIONS)
    assert summed.layers.m_b_bytes[1:5] == [summed.layers.m_b_bytes[1]] * 4
    assert summed.per_stage("m_b_bytes") == pytest.approx(whole.per_stage("m_b_bytes"), rel=0.03)
    assert summed.per_stage("m_w_bytes") == whole.per_stage("m_w_bytes")
    assert summed.per_stage("m_static_bytes") == whole.per_stage("m_static_bytes")


def test_the_papers_models_are_known_by_name() -> None:
    assert list(PAPER_MODELS) == ["gpt-1.5b", "gpt-6.2b", "gpt-14.6b", "gpt-28.3b"]
    model = gpt.staged_model(PAPER_MODELS["gpt-1.5b"], 8)
    assert model.microbatch[0].shape == model.target.shape == (6, 1024)
    assert len(model.stages) == 8
