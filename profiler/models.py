"""The transformers that are known by name: the four models of the Zero Bubble paper (arXiv 2401.10241, Table 3)."""

from __future__ import annotations

from dataclasses import dataclass

from profiler.errors import MeasurementError
from zbplan.amount import MAX_STAGES

PADDED_VOCABULARY = 50304
"""GPT-2's 50257 tokens, up to a multiple of 128 as Megatron-LM pads them; the paper gives no number."""

MOST_BLOCKS = MAX_STAGES - 2
"""Embedding and head are layers as well."""

MOST = 1 << 40
"""The largest of all other sizes."""


@dataclass(frozen=True, kw_only=True)
class Transformer:
    """The sizes of a GPT and of its microbatch.

    Attributes
    ----------
    blocks
        Transformer layers, without embedding and head.
    devices
        Pipeline ranks that the paper trains it on.
    """

    name: str
    blocks: int
    hidden: int
    heads: int
    sequence: int
    microbatch_size: int
    vocabulary: int = PADDED_VOCABULARY
    devices: int = 1

    def __post_init__(self) -> None:
        sizes = {field: value for field, value in vars(self).items() if field != "name"}
        wrong = [f"{field} {value}" for field, value in sizes.items() if value < 1]
        if wrong:
            raise MeasurementError(f"found {', '.join(wrong)}; needed 1 or more")
        for field, value in sizes.items():
            most = MOST_BLOCKS if field == "blocks" else MOST
            if value > most:
                raise MeasurementError(f"found {field} {value}; needed at most {most}")
        if self.hidden % self.heads:
            raise MeasurementError(f"found hidden size {self.hidden}; needed a multiple of the {self.heads} heads")


PAPER_MODELS = {
    model.name: model
    for model in (
        Transformer(name="gpt-1.5b", blocks=22, hidden=2304, heads=24, sequence=1024, microbatch_size=6, devices=8),
        Transformer(name="gpt-6.2b", blocks=30, hidden=4096, heads=32, sequence=1024, microbatch_size=3, devices=8),
        Transformer(name="gpt-14.6b", blocks=46, hidden=5120, heads=40, sequence=1024, microbatch_size=1, devices=16),
        Transformer(name="gpt-28.3b", blocks=62, hidden=6144, heads=48, sequence=1024, microbatch_size=1, devices=32),
    )
}
