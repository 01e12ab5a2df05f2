"""Profile: what was measured of a model cut in stages, on the nodes that will train it."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import Annotated, Any, ClassVar, Literal, Self, get_args

from pydantic import Discriminator, Field, Tag, model_validator

from zbplan.amount import MAX_STAGES, Amount, Measured, Splittable
from zbplan.errors import Finding, InvalidInputError
from zbplan.evidence import Check, Statistics
from zbplan.layers import Layers
from zbplan.record import BRANCH, Environment, Record, branch, refuse
from zbplan.scale import decimal

EngineMode = Literal["weight_grad_store", "native_split", "fused"]

FieldName = Literal[
    "t_f_ms",
    "t_b_ms",
    "t_w_ms",
    "t_bw_ms",
    "t_comm_ms",
    "m_b_bytes",
    "m_w_bytes",
    "m_static_bytes",
    "m_peak_bytes",
    "boundary_bytes",
]
PER_STAGE = tuple(name for name in get_args(FieldName) if name != "t_comm_ms")


class Transfer(Record):
    """T_comm per stage boundary: ``forward[s]`` from stage s to s + 1, ``backward[s]`` from stage s + 1 to s."""

    forward: Annotated[list[Amount], Field(max_length=MAX_STAGES)]
    backward: Annotated[list[Amount], Field(max_length=MAX_STAGES)]


def _transfer_shape(value: object) -> str:
    return "object" if isinstance(value, dict | Transfer) else "number"


Comm = Annotated[
    Annotated[Amount, Tag(f"{BRANCH}number")] | Annotated[Transfer, Tag(f"{BRANCH}object")],
    Discriminator(branch(_transfer_shape)),
]


class Profile(Record):
    """Times in milliseconds and memory in bytes of every stage.

    A measured field is one number (all stages alike), a list of one number per stage, or a list per stage of one
    number per microbatch.

    Attributes
    ----------
    t_f_ms, t_b_ms, t_w_ms
        Forward; backward for the input gradient only; backward for the weight gradient only.
    t_bw_ms
        Fused backward; None derives T_B + T_W.
    t_comm_ms
        Latency from the end of a producer to the earliest start of its consumer on another device.
    m_b_bytes
        Held per microbatch from the start of F to the end of B.
    m_w_bytes
        Held from the end of B to the end of W.
    m_static_bytes
        Weights, gradients and optimizer state of a stage.
    m_peak_bytes
        Extra inside any op, above the live level.
    boundary_bytes
        One transfer.
    splittable
        False where a stage can run only BW.
    estimated
        Names of the fields that were given or computed from formulas, not measured.
    forced
        What ``--force`` let pass, one sentence each; empty for a profile that is as sure as it should be.
    statistics
        Spread and number of the samples behind the measured times.
    checks
        Cross-checks made when it was measured.
    layers
        The same per model layer, for cutting the model anew. No part of the canonical form: two profiles with equal
        stages are the same problem, unless the problem leaves the cut open.
    """

    reserved: ClassVar[frozenset[str]] = frozenset(
        {"t_link_ms", "t_optimizer_ms", "t_reduce_ms", "t_recompute_ms", "device_scale", "measured_on"}
    )

    format: Literal["zbplan.profile/1"] = "zbplan.profile/1"
    name: str = ""
    stages: Annotated[int, Field(ge=1, le=MAX_STAGES)]
    engine_mode: EngineMode = "weight_grad_store"
    t_f_ms: Measured
    t_b_ms: Measured
    t_w_ms: Measured
    t_bw_ms: Measured | None = None
    splittable: Splittable = True
    t_comm_ms: Comm
    m_b_bytes: Measured
    m_w_bytes: Measured
    m_static_bytes: Measured = 0.0
    m_peak_bytes: Measured = 0.0
    boundary_bytes: Measured = 0.0
    estimated: Annotated[list[FieldName], Field(default_factory=list, max_length=10)]
    forced: Annotated[list[Annotated[str, Field(max_length=1000)]], Field(default_factory=list, max_length=1000)]
    statistics: Statistics | None = None
    checks: Annotated[list[Check], Field(default_factory=list, max_length=8 * MAX_STAGES)]
    layers: Layers | None = None
    environment: Annotated[Environment, Field(default_factory=dict)]

    @model_validator(mode="after")
    def _lengths(self) -> Self:
        refuse(self._wrong_lengths())
        return self

    def _wrong_lengths(self) -> Iterator[Finding]:
        for name in (*PER_STAGE, "splittable"):
            value = getattr(self, name)
            if isinstance(value, list) and len(value) != self.stages:
                yield Finding(f".{name}", f"{len(value)} entries", f"{self.stages}, one per stage")
        if isinstance(self.t_comm_ms, Transfer):
            for name in ("forward", "backward"):
                found = len(getattr(self.t_comm_ms, name))
                if found != self.stages - 1:
                    needed = f"{self.stages - 1}, one per stage boundary"
                    yield Finding(f".t_comm_ms.{name}", f"{found} entries", needed)
        if self.statistics is not None:
            for finding in self.statistics.wrong_lengths(self.stages):
                yield Finding(f".statistics{finding.path}", finding.found, f"{finding.needed}, by stages")

    @property
    def derived(self) -> tuple[str, ...]:
        """Names of fields that were not measured but follow from others."""
        return ("t_bw_ms",) if self.t_bw_ms is None else ()

    def per_stage(self, name: str) -> list[float | list[float]]:
        """Return a measured field with one entry per stage: a number, or a list of one number per microbatch.

        ``t_bw_ms`` that was not measured is T_B + T_W, added as decimals.
        """
        value = getattr(self, name)
        if value is None:
            pairs = zip(self.per_stage("t_b_ms"), self.per_stage("t_w_ms"), strict=True)
            return [_collapse(_add(b, w)) for b, w in pairs]
        return [_collapse(entry) for entry in value] if isinstance(value, list) else [value + 0.0] * self.stages

    def splits(self) -> list[bool]:
        """Return, per stage, whether B and W may run apart; never in engine mode ``fused``."""
        if self.engine_mode == "fused":
            return [False] * self.stages
        return self.splittable if isinstance(self.splittable, list) else [self.splittable] * self.stages

    def comm(self) -> Transfer:
        """Return T_comm per stage boundary and direction."""
        if isinstance(self.t_comm_ms, Transfer):
            return self.t_comm_ms
        each = [self.t_comm_ms + 0.0] * (self.stages - 1)
        return Transfer(forward=each, backward=each)

    def cut(self, starts: Sequence[int], *, t_comm_ms: float | None = None) -> Self:
        """Return the profile of another cut of its layers in stages.

        Parameters
        ----------
        starts
            The first layer of each stage.
        t_comm_ms
            T_comm of all boundaries of the new cut; None keeps the profile's, where it is one number.

        Raises
        ------
        InvalidInputError
            When the profile has no layers, ``starts`` is no cut of them, or T_comm differs between boundaries and is
            not given: times measured between other stages say nothing about these.
        """
        if self.layers is None:
            raise InvalidInputError([Finding("$.layers", "nothing", "a profile per layer, to cut the model anew")])
        comm = self.comm()
        known = {*comm.forward, *comm.backward}
        if len(known) > 1 and t_comm_ms is None:
            found = f"{min(known):g} to {max(known):g} ms by stage boundary"
            raise InvalidInputError([Finding("$.t_comm_ms", found, "one number, which holds for any cut")])
        same = known.pop() if known else self.t_comm_ms
        kept = ("name", "engine_mode", "estimated", "forced", "layers")
        return self.parse(
            {
                **self.layers.cut(starts),
                **{name: getattr(self, name) for name in kept},
                "t_comm_ms": same if t_comm_ms is None else t_comm_ms,
                "environment": {name: value for name, value in self.environment.items() if name != "placement"},
            }
        )

    def canonical(self) -> dict[str, Any]:
        """Return the JSON value that equal profiles share: defaults filled in, arrays expanded, no name, no evidence.

        Of the environment only ``placement`` is kept, and only where T_comm depends on it.
        """
        comm = self.comm()
        same = len({*comm.forward, *comm.backward}) <= 1
        measured_on = self.environment.get("placement")
        keep = {} if same or measured_on is None else {"environment": {"placement": measured_on}}
        return {
            "format": self.format,
            "stages": self.stages,
            "engine_mode": self.engine_mode,
            "splittable": self.splits(),
            "t_comm_ms": (comm.forward or [0.0])[0] + 0.0 if same else comm.model_dump(),
            **{name: self.per_stage(name) for name in PER_STAGE},
            **keep,
        }


def _collapse(entry: float | list[float]) -> float | list[float]:
    if isinstance(entry, list):
        return entry[0] + 0.0 if len(set(entry)) == 1 else [value + 0.0 for value in entry]
    return entry + 0.0


def _add(left: float | list[float], right: float | list[float]) -> float | list[float]:
    if isinstance(left, list) and isinstance(right, list):
        return [float(decimal(a) + decimal(b)) for a, b in zip(left, right, strict=True)]
    if isinstance(left, list):
        return [float(decimal(a) + decimal(right)) for a in left]  # type: ignore[arg-type]
    if isinstance(right, list):
        return [float(decimal(left) + decimal(b)) for b in right]
    return float(decimal(left) + decimal(right))
