"""A profile from formulas, for who has no GPU yet: FLOPs and bytes of a transformer on a device's peak numbers.

FLOPs and activation bytes per layer are those of the Zero Bubble paper (arXiv 2401.10241, Table 1); how tensor
parallelism divides them follows Korthikanti et al. (arXiv 2205.05198, section 4.2, without sequence parallelism), from
which Table 1 takes its bytes. s is the sequence, b the microbatch, h the hidden size, a the heads, V the vocabulary.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any, get_args

from profiler.errors import MeasurementError
from profiler.models import Transformer
from zbplan.duration import DIGITS
from zbplan.layers import even_starts
from zbplan.profile import FieldName, Profile

STATIC_BYTES_PER_PARAMETER = 18.0
"""bf16 weight, fp32 gradient, and fp32 weight with Adam's two moments."""

BF16, FP32 = 2, 4
"""Bytes of a number."""


@dataclass(frozen=True, kw_only=True)
class Device:
    """What a data sheet says of an accelerator and its links.

    Attributes
    ----------
    peak_tflops
        Dense bf16 matrix products.
    memory_gb_per_s
        Of its memory, in 1e9 bytes.
    link_gb_per_s, link_latency_ms
        One way to the next device.
    efficiency
        Part of the peaks that training reaches.
    """

    name: str
    peak_tflops: float
    memory_gb_per_s: float
    link_gb_per_s: float
    link_latency_ms: float = 0.02
    efficiency: float = 0.5

    def __post_init__(self) -> None:
        for field in ("peak_tflops", "memory_gb_per_s", "link_gb_per_s", "efficiency"):
            value = getattr(self, field)
            if not 0 < value < float("inf"):
                raise MeasurementError(f"{field}: found {value}; needed a finite number above 0")
        if not 0 <= self.link_latency_ms < float("inf"):
            raise MeasurementError(f"link_latency_ms: found {self.link_latency_ms}; needed a finite number, 0 or more")

    def matrix_ms(self, flops: float) -> float:
        """Return how long matrix products of so many FLOPs take."""
        return flops / (self.peak_tflops * self.efficiency * 1e9)

    def memory_ms(self, nbytes: float) -> float:
        """Return how long it takes to read or write so many bytes."""
        return nbytes / (self.memory_gb_per_s * self.efficiency * 1e6)

    def transfer_ms(self, nbytes: float) -> float:
        """Return T_comm of so many bytes."""
        return self.link_latency_ms + nbytes / (self.link_gb_per_s * 1e6)


DEVICES = {
    device.name: device
    for device in (
        Device(name="a100", peak_tflops=312, memory_gb_per_s=2039, link_gb_per_s=25),
        Device(name="h100", peak_tflops=989, memory_gb_per_s=3350, link_gb_per_s=50),
        Device(name="h200", peak_tflops=989, memory_gb_per_s=4800, link_gb_per_s=50),
    )
}
"""SXM modules; the link is one InfiniBand port per GPU (HDR, NDR)."""


def estimate(
    model: Transformer,
    device: Device,
    *,
    stages: int | None = None,
    tensor_parallel: int = 1,
    flash_attention: bool = False,
) -> Profile:
    """Return the profile of a transformer by formula, every field marked ``estimated``.

    Its layers are embedding, blocks and head; its stages an even cut of them, so that the first and the last have one
    block fewer where all others have as many (paper, section 5.1).

    Parameters
    ----------
    stages
        None takes the paper's number of pipeline ranks.
    tensor_parallel
        Devices that share each layer.
    flash_attention
        False keeps the attention matrix, as the paper's Table 1 does; True keeps none (5as of M_B fall away).

    Raises
    ------
    MeasurementError
        When heads or vocabulary cannot be divided by ``tensor_parallel``.
    zbplan.errors.InvalidInputError
        When there are more stages than layers.
    """
    for name in ("heads", "vocabulary"):
        if tensor_parallel < 1 or getattr(model, name) % tensor_parallel:
            found = f"{getattr(model, name)} {name} for tensor-parallel groups of {tensor_parallel}"
            raise MeasurementError(f"found {found}; needed a multiple of it")
    layers = [
        _embedding(model, device, tensor_parallel),
        *[_block(model, device, tensor_parallel, flash_attention)] * model.blocks,
        _head(model, device, tensor_parallel),
    ]
    columns = {name: [layer[name] for layer in layers] for name in layers[0]}
    boundary = float(BF16 * model.sequence * model.microbatch_size * model.hidden)
    columns["boundary_bytes"] = [boundary] * (len(layers) - 1) + [0.0]
    whole = Profile.parse(
        {
            "name": f"{model.name} on {device.name}, estimated",
            "stages": len(layers),
            "engine_mode": "weight_grad_store",
            **columns,
            "t_comm_ms": _ms(device.transfer_ms(boundary)),
            "layers": {"count": len(layers), **columns},
            "estimated": [name for name in get_args(FieldName) if name not in ("t_bw_ms", "m_peak_bytes")],
            "environment": _environment(model, device, tensor_parallel, flash_attention),
        }
    )
    return whole.cut(even_starts(len(layers), model.devices if stages is None else stages))


def _block(model: Transformer, device: Device, tensor: int, flash: bool) -> dict[str, float]:
    """Take Table 1: sbh(24h+4s), sbh(24h+8s) and 24sbh² FLOPs; sb(34h+5as) bytes (and the output) and 32sbh bytes."""
    s, b, h, a = model.sequence, model.microbatch_size, model.hidden, model.heads
    sbh = s * b * h
    attention = 0 if flash else 5 * a * s * s * b
    return {
        "t_f_ms": _ms(device.matrix_ms(sbh * (24 * h + 4 * s) / tensor)),
        "t_b_ms": _ms(device.matrix_ms(sbh * (24 * h + 8 * s) / tensor)),
        "t_w_ms": _ms(device.matrix_ms(sbh * 24 * h / tensor)),
        "m_b_bytes": sbh * (10 + 24 / tensor) + attention / tensor + BF16 * sbh,
        "m_w_bytes": sbh * (8 + 24 / tensor),
        "m_static_bytes": _static(12 * h * h + 13 * h, tensor),
    }


def _embedding(model: Transformer, device: Device, tensor: int) -> dict[str, float]:
    """Look up, add the position, drop out: bound by memory; B scatters, nothing is left for W."""
    sbh = model.sequence * model.microbatch_size * model.hidden
    moved = 3 * BF16 * sbh
    return {
        "t_f_ms": _ms(device.memory_ms(moved)),
        "t_b_ms": _ms(device.memory_ms(moved)),
        "t_w_ms": 0.0,
        "m_b_bytes": float(sbh * (BF16 + 1)),
        "m_w_bytes": 0.0,
        "m_static_bytes": _static(model.vocabulary * model.hidden, tensor) + _static(model.sequence * model.hidden, 1),
    }


def _head(model: Transformer, device: Device, tensor: int) -> dict[str, float]:
    """Norm, logits and loss take 2sbhV FLOPs each for F, B and W, and hold fp32 logits (arXiv 2205.05198, 4.3)."""
    sb, h, v = model.sequence * model.microbatch_size, model.hidden, model.vocabulary
    each = _ms(device.matrix_ms(2 * sb * h * v / tensor))
    return {
        "t_f_ms": each,
        "t_b_ms": each,
        "t_w_ms": each,
        "m_b_bytes": float(sb * (2 * BF16 * h + FP32 * v / tensor)),
        "m_w_bytes": float(sb * (BF16 * h + BF16 * v / tensor)),
        "m_static_bytes": _static(v * h, tensor),
    }


def _static(parameters: int, tensor: int) -> float:
    return STATIC_BYTES_PER_PARAMETER * parameters / tensor


def _ms(milliseconds: float) -> float:
    return round(milliseconds, DIGITS)


def _environment(model: Transformer, device: Device, tensor: int, flash: bool) -> dict[str, Any]:
    return {
        "device": device.name,
        "efficiency": device.efficiency,
        "dtype": "bfloat16",
        "microbatch_size": model.microbatch_size,
        "sequence_length": model.sequence,
        "tensor_parallel": tensor,
        "flash_attention": flash,
    }
