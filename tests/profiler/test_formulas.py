from __future__ import annotations

from dataclasses import replace

import pytest

from profiler import MeasurementError, estimate
from profiler.formulas import DEVICES, Device
from profiler.models import PAPER_MODELS, Transformer
from zbplan.errors import InvalidInputError

UNIT = Device(name="unit", peak_tflops=1.0, memory_gb_per_s=1.0, link_gb_per_s=1.0, link_latency_ms=0.0, efficiency=1.0)
MODELS = list(PAPER_MODELS.values())


@pytest.mark.parametrize("model", MODELS, ids=lambda model: model.name)
def test_a_block_takes_the_flops_and_bytes_of_table_1(model: Transformer) -> None:
    s, b, h, a = model.sequence, model.microbatch_size, model.hidden, model.heads
    layers = estimate(model, UNIT).layers
    assert layers is not None
    assert layers.count == model.blocks + 2
    flops_per_ms = 1e9
    assert layers.t_f_ms[1] * flops_per_ms == pytest.approx(s * b * h * (24 * h + 4 * s))
    assert layers.t_b_ms[1] * flops_per_ms == pytest.approx(s * b * h * (24 * h + 8 * s))
    assert layers.t_w_ms[1] * flops_per_ms == pytest.approx(s * b * h * 24 * h)
    output = 2 * s * b * h
    assert layers.m_b_bytes[1] == s * b * (34 * h + 5 * a * s) + output
    assert layers.m_w_bytes[1] == 32 * s * b * h
    assert layers.boundary_bytes[1] == output


@pytest.mark.parametrize("model", MODELS, ids=lambda model: model.name)
def test_stages_are_cut_as_in_the_paper(model: Transformer) -> None:
    profile = estimate(model, UNIT)
    assert profile.stages == model.devices
    inner = profile.t_w_ms[1:-1]
    assert max(inner) == min(inner)
    per_block = profile.layers.t_w_ms[1]
    assert inner[0] == pytest.approx((model.blocks + 2) / model.devices * per_block)
    assert profile.t_w_ms[0] == pytest.approx(inner[0] - per_block)


@pytest.mark.parametrize("model", MODELS, ids=lambda model: model.name)
def test_sizes_are_those_of_table_3(model: Transformer) -> None:
    billions = 12 * model.blocks * model.hidden**2 + model.vocabulary * model.hidden
    assert billions / 1e9 == pytest.approx(float(model.name.removeprefix("gpt-").removesuffix("b")), rel=0.02)


def test_nothing_of_it_passes_for_measured() -> None:
    profile = estimate(MODELS[0], DEVICES["a100"])
    assert {"t_f_ms", "t_b_ms", "t_w_ms", "t_comm_ms", "m_b_bytes", "m_w_bytes"} <= set(profile.estimated)
    assert profile.derived == ("t_bw_ms",)
    assert profile.statistics is None
    assert "estimated" in profile.name


def test_tensor_parallelism_divides_what_it_shards() -> None:
    whole, halved = (estimate(MODELS[0], UNIT, tensor_parallel=k).layers for k in (1, 2))
    assert halved.t_f_ms[1] == pytest.approx(whole.t_f_ms[1] / 2)
    assert halved.m_static_bytes[1] == whole.m_static_bytes[1] / 2
    assert whole.m_w_bytes[1] / 2 < halved.m_w_bytes[1] < whole.m_w_bytes[1]  # inputs of sharded layers are whole


def test_flash_attention_keeps_no_attention_matrix() -> None:
    model = MODELS[0]
    without = estimate(model, UNIT, flash_attention=True).layers
    assert without.m_b_bytes[1] == (34 + 2) * model.sequence * model.microbatch_size * model.hidden


def test_a_transfer_takes_latency_and_bytes() -> None:
    slow = replace(UNIT, link_latency_ms=3.0)
    model = Transformer(name="x", blocks=2, hidden=1000, heads=1, sequence=500, microbatch_size=1)
    assert estimate(model, slow, stages=2).t_comm_ms == 3 + 1


@pytest.mark.parametrize(
    ("call", "complaint"),
    [
        (lambda: estimate(MODELS[0], UNIT, tensor_parallel=5), "found 24 heads for tensor-parallel groups of 5"),
        (lambda: estimate(MODELS[0], UNIT, tensor_parallel=0), "needed a multiple of it"),
        (lambda: replace(UNIT, efficiency=0.0), "efficiency: found 0.0; needed a finite number above 0"),
        (lambda: replace(UNIT, peak_tflops=float("nan")), "peak_tflops: found nan"),
        (lambda: replace(UNIT, link_latency_ms=-1.0), "link_latency_ms: found -1.0; needed a finite number, 0 or more"),
        (lambda: replace(MODELS[0], blocks=0), "found blocks 0; needed 1 or more"),
        (lambda: replace(MODELS[0], blocks=10**12), "found blocks 1000000000000; needed at most 16382"),
        (lambda: replace(MODELS[0], sequence=10**400), "found sequence 10+; needed at most 1099511627776"),
        (lambda: replace(MODELS[0], heads=7), "found hidden size 2304; needed a multiple of the 7 heads"),
    ],
)
def test_what_cannot_be_is_refused(call, complaint: str) -> None:
    with pytest.raises(MeasurementError, match=complaint):
        call()


def test_more_stages_than_layers_are_refused() -> None:
    with pytest.raises(InvalidInputError, match="found 25; needed 1 to 24"):
        estimate(MODELS[0], UNIT, stages=25)
