"""Problem: a profile, devices, microbatches and limits; what a plan is asked for, and the key it is stored under."""

from __future__ import annotations

import re
from collections.abc import Iterator, Sequence
from dataclasses import replace
from decimal import Decimal
from functools import cached_property
from typing import Annotated, Any, Literal, Self

import numpy as np
from pydantic import Discriminator, Field, Tag, ValidationInfo, field_validator, model_validator

from zbplan import placement as placements
from zbplan import units
from zbplan.amount import MAX_MICROBATCHES
from zbplan.errors import Finding, InvalidInputError
from zbplan.evidence import TIMES
from zbplan.instance import UNLIMITED, Instance, IntArray
from zbplan.layers import Layers, even_starts
from zbplan.placement import Placement
from zbplan.profile import Profile
from zbplan.record import BRANCH, Record, branch, digest, refuse
from zbplan.scale import MEMORY_HORIZON, Scale

REVISION = 2
"""Planner revision: part of every key, raised when the planner may answer the same problem otherwise."""

MAX_OPS = 4_000_000

METHODS = (
    "auto",
    "heuristic",
    "ilp",
    "cp_sat",
    "gpipe",
    "1f1b",
    "interleaved_1f1b",
    "1f1b_v",
    "zb_h1",
    "zb_h2",
    "zb_greedy",
    "zb_v",
    "v_half",
    "v_min",
)

Optimizer = Literal["synchronous", "post_validated"]
"""The objective: the makespan, or the longest span of a device."""

Limit = Annotated[float, Field(ge=0)]
"""Bytes; a multiple of the largest amounts is more than an amount may be."""

_MULTIPLE = re.compile(r"\d{1,6}(\.\d{1,6})?x")


def _placement_shape(value: object) -> str:
    return "list" if isinstance(value, list) else "name"


def _limit_shape(value: object) -> str:
    return "list" if isinstance(value, list) else "multiple" if isinstance(value, str) else "bytes"


class Problem(Record):
    """What a plan is asked for.

    Attributes
    ----------
    placement
        ``linear``, ``interleaved``, ``v``, ``auto`` (the best that the stages allow; where the profile has layers, the
        best of any cut of them), or a list of stages per device.
    memory_limit
        Bytes per device, static memory included; a list of bytes per device; ``"kx"``, which is k · p · the largest
        sum over a device's stages of max(M_B, M_W), plus the device's static memory and what its ops use inside
        (so that "1x" is room for 1F1B); or None. Where the layers are open, M_B and M_W are those of the even cut in
        one stage per device, so that every cut has as much room for activations.
    optimizer
        ``synchronous`` minimises the makespan, ``post_validated`` the longest device span (Appendix G, eq. 3).
    method
        A solver, a named schedule, ``heuristic`` or ``auto``.
    time_limit_s
        Wall-clock seconds for solving; not part of the key.
    """

    profile: Profile
    devices: Annotated[int, Field(ge=1, le=4096)]
    microbatches: Annotated[int, Field(ge=1, le=MAX_MICROBATCHES)]
    placement: Annotated[
        Annotated[str, Tag(f"{BRANCH}name")] | Annotated[list[list[int]], Tag(f"{BRANCH}list")],
        Discriminator(branch(_placement_shape)),
    ] = "auto"
    memory_limit: (
        Annotated[
            Annotated[Limit, Tag(f"{BRANCH}bytes")]
            | Annotated[str, Tag(f"{BRANCH}multiple")]
            | Annotated[list[Limit], Tag(f"{BRANCH}list")],
            Discriminator(branch(_limit_shape)),
        ]
        | None
    ) = None
    optimizer: Optimizer = "synchronous"
    method: str = "auto"
    time_limit_s: Annotated[float, Field(gt=0)] = 10.0

    @field_validator("method")
    @classmethod
    def _known_method(cls, method: str) -> str:
        if method not in METHODS:
            refuse([Finding("", f"str {method!r}", f"one of {', '.join(METHODS)}")])
        return method

    @field_validator("memory_limit")
    @classmethod
    def _limit(cls, limit: object, info: ValidationInfo) -> object:
        if isinstance(limit, str) and not _MULTIPLE.fullmatch(limit):
            refuse(
                [Finding("", f"str {limit!r}", 'bytes, a list of bytes per device, null, or a multiple like "1.5x"')]
            )
        devices = info.data.get("devices")
        if isinstance(limit, list) and devices is not None and len(limit) != devices:
            refuse([Finding("", f"{len(limit)} entries", f"{devices}, one per device")])
        return limit

    @model_validator(mode="after")
    def _fits(self) -> Self:
        refuse(self._too_few_layers())
        refuse(self._too_many_ops())
        refuse(self._wrong_microbatches())
        try:
            _ = self.placements
            self._check_measured_placement()
            _ = self._clock
        except InvalidInputError as error:
            refuse(Finding(finding.path.removeprefix("$"), finding.found, finding.needed) for finding in error.findings)
        return self

    @cached_property
    def open_layers(self) -> Layers | None:
        """The layers that a plan may cut in stages as it likes: those of the profile, where ``auto`` is asked for."""
        return self.profile.layers if self.placement == "auto" else None

    @property
    def most_stages(self) -> int:
        """How many stages a plan may have."""
        return self.profile.stages if self.open_layers is None else max(map(placements.stages_in, self.placements))

    def _too_few_layers(self) -> Iterator[Finding]:
        if self.open_layers is not None and self.open_layers.count < self.devices:
            found = f"{self.open_layers.count} layers for {self.devices} devices"
            yield Finding(".profile.layers.count", found, "one per device or more: fewer devices, or finer layers")

    def _too_many_ops(self) -> Iterator[Finding]:
        ops = 3 * self.most_stages * self.microbatches
        if ops > MAX_OPS:
            found = f"{self.most_stages} stages × {self.microbatches} microbatches = {ops} ops"
            yield Finding(".microbatches", found, f"at most {MAX_OPS} ops")

    def _wrong_microbatches(self) -> Iterator[Finding]:
        for name in (*TIMES, "m_b_bytes", "m_w_bytes", "m_peak_bytes"):
            value = getattr(self.profile, name)
            for stage, entry in enumerate(value if isinstance(value, list) else []):
                if isinstance(entry, list) and len(entry) != self.microbatches:
                    needed = f"{self.microbatches}, one per microbatch"
                    yield Finding(f".profile.{name}[{stage}]", f"{len(entry)} entries", needed)
        for name in ("m_static_bytes", "boundary_bytes"):
            value = getattr(self.profile, name)
            for stage, entry in enumerate(value if isinstance(value, list) else []):
                if isinstance(entry, list):
                    yield Finding(f".profile.{name}[{stage}]", "a list", "one number per stage")

    def _check_measured_placement(self) -> None:
        if not isinstance(self.canonical_profile["t_comm_ms"], dict):
            return
        stages, devices = self.profile.stages, self.devices
        measured = self.profile.environment.get("placement", "linear")
        if isinstance(measured, str):
            measured = placements.candidates(measured, stages, devices)[0]
        if self.placements != [measured]:
            found = f"times per boundary measured on placement {measured}"
            needed = f"one number, or times measured on the placement asked for ({self.placement})"
            raise InvalidInputError([Finding("$.profile.t_comm_ms", found, needed)])

    @cached_property
    def placements(self) -> list[Placement]:
        """The placements to plan for; several only for ``auto``."""
        stages, devices = self.profile.stages, self.devices
        if self.open_layers is not None:
            return placements.of_layers(self.open_layers.count, devices)
        if isinstance(self.placement, str):
            return placements.candidates(self.placement, stages, devices)
        return [placements.custom(self.placement, stages, devices)]

    @cached_property
    def canonical_profile(self) -> dict[str, Any]:
        """The profile with defaults filled in and arrays expanded.

        Where the layers are open, they are kept, and the stages are the even cut in one per device.
        """
        if self.open_layers is None:
            return self.profile.canonical()
        return {**self._even.profile.canonical(), "layers": self.open_layers.canonical()}

    def cut(self, starts: Sequence[int], placement: Placement) -> Self:
        """Return the problem that is left when the open layers are cut in stages and placed.

        Parameters
        ----------
        starts
            The first layer of each stage.

        Raises
        ------
        InvalidInputError
            When ``starts`` is no cut of the layers, or does not go with the placement.
        """
        chosen = self._on_cut(starts, placement)
        if not isinstance(self.memory_limit, str):
            return chosen
        even = self._even._shared(self.memory_limit, self._even.placements[0])
        shared = Decimal(chosen._memory.ceil(self._even._memory.not_below(even)))
        return chosen.model_copy(update={"memory_limit": chosen._limits_around(shared, placement)})

    def _on_cut(self, starts: Sequence[int], placement: Placement) -> Self:
        asked = {name: getattr(self, name) for name in type(self).model_fields}
        return self.parse({**asked, "profile": self._profile_cut(starts), "placement": placement})

    def _profile_cut(self, starts: Sequence[int]) -> Profile:
        profile, layers = self.profile, self.profile.layers
        if layers is not None:
            # Spelled out as in the canonical form: a sum of rounded sums may differ from a sum over layers.
            spelled_out = {"t_bw_ms": layers.per_layer("t_bw_ms")}
            profile = profile.model_copy(update={"layers": layers.model_copy(update=spelled_out)})
        try:
            return profile.cut(starts)
        except InvalidInputError as error:
            within = [replace(finding, path=f"$.profile{finding.path[1:]}") for finding in error.findings]
            raise InvalidInputError(within) from None

    @cached_property
    def _even(self) -> Self:
        assert self.open_layers is not None  # noqa: S101 - asked for only where the layers are open
        return self._on_cut(even_starts(self.open_layers.count, self.devices), placements.linear(self.devices))

    @cached_property
    def _finest(self) -> Profile:
        """The profile in as many stages as it may come to have."""
        layers = self.open_layers
        return self.profile if layers is None else self._profile_cut(range(layers.count))

    def limits(self, placement: Placement) -> list[float] | None:
        """Return the memory limit of each device in bytes, static memory included; None without limit."""
        if self.memory_limit is None or isinstance(self.memory_limit, list):
            return None if self.memory_limit is None else [limit + 0.0 for limit in self.memory_limit]
        if isinstance(self.memory_limit, str):
            return self._limits_around(self._shared(self.memory_limit, placement), placement)
        return [self.memory_limit + 0.0] * self.devices

    def _shared(self, multiple: str, placement: Placement) -> Decimal:
        """Return the memory units that "kx" gives to the activations of each device."""
        held = self._per_stage_max("m_b_bytes", "m_w_bytes")
        heaviest = max(sum(held[stage] for stage in stages) for stages in placement)
        return Decimal(multiple.removesuffix("x")) * self.devices * heaviest

    def _limits_around(self, shared: Decimal, placement: Placement) -> list[float]:
        """Return limits that leave each device these units beside its static memory and what its ops use inside.

        They are rounded up as the amounts are, so that no rounding takes room for one of them.
        """
        static, peak = self._per_stage_max("m_static_bytes"), self._per_stage_max("m_peak_bytes")
        own = [sum(static[stage] for stage in stages) + max(peak[stage] for stage in stages) for stages in placement]
        return [self._memory.not_below(shared + each) for each in own]

    def _per_stage_max(self, *names: str) -> list[int]:
        """Return the largest of some amounts of each stage, in memory units."""
        columns = [self.canonical_profile[name] for name in names]
        return [
            max(self._memory.ceil(value) for entry in row for value in units.entries(entry))
            for row in zip(*columns, strict=True)
        ]

    @cached_property
    def canonical(self) -> dict[str, Any]:
        """The JSON value that equal problems share, and that a plan carries.

        Names, environment and time limit are left out; placement and memory limit are resolved, except where
        ``auto`` still leaves a choice, of the placement or of the cut.
        """
        resolved = self.placements[0] if len(self.placements) == 1 and self.open_layers is None else None
        return {
            "profile": self.canonical_profile,
            "devices": self.devices,
            "microbatches": self.microbatches,
            "placement": self.placement if resolved is None else resolved,
            "memory_limit": self._unresolved_limit() if resolved is None else self.limits(resolved),
            "optimizer": self.optimizer,
            "method": self.method,
        }

    def _unresolved_limit(self) -> float | str | list[float] | None:
        """Return the memory limit, a multiple in its shortest form where layers are open: "1.0x" is "1x"."""
        if self.open_layers is None or not isinstance(self.memory_limit, str):
            return self.memory_limit
        return f"{Decimal(self.memory_limit.removesuffix('x')).normalize():f}x"

    @cached_property
    def key(self) -> str:
        """SHA-256, in hex, under which the best plan for this problem is stored."""
        profile = {name: value for name, value in self.canonical_profile.items() if name != "environment"}
        return digest({"problem": {**self.canonical, "profile": profile}, "revision": REVISION})

    def instance(self, placement: Placement | None = None) -> Instance:
        """Return the problem as integer arrays, on its only placement or on the one given.

        Raises
        ------
        ValueError
            If the problem leaves a choice of placements and none is given.
        InvalidInputError
            If its layers are still to be cut.
        """
        if self.open_layers is not None:
            needed = "stages: cut the layers (zbplan partition), or name the placement of the profile's stages"
            raise InvalidInputError([Finding("$.placement", "'auto' with a profile of layers", needed)])
        if placement is None:
            (placement,) = self.placements
        device_of = np.array(placements.devices_of(placement), dtype=np.int64)
        hold, release = self._memory_changes
        static = np.array([sum(self._static[stage] for stage in stages) for stages in placement], dtype=np.int64)
        return Instance(
            device_of=device_of,
            duration=self._durations,
            forward_lag=self._lags("forward", device_of),
            backward_lag=self._lags("backward", device_of),
            hold=hold,
            release=release,
            peak=self._held("m_peak_bytes"),
            static=static,
            room=self._room(placement, static),
            splittable=np.array(self.profile.splits(), dtype=np.bool_),
            post_validated=self.optimizer == "post_validated",
            clock=self._clock,
            memory=self._memory,
        )

    @cached_property
    def _clock(self) -> Scale:
        path = "$.profile" if self.open_layers is None else "$.profile.layers"
        return units.clock_for(self._finest, self.microbatches, path)

    @cached_property
    def _memory(self) -> Scale:
        return units.memory_for(self.canonical_profile, self._explicit_limits(), self.microbatches)

    @cached_property
    def _durations(self) -> IntArray:
        return units.durations(self.canonical_profile, self.microbatches, self._clock)

    @cached_property
    def _memory_changes(self) -> tuple[IntArray, IntArray]:
        return units.memory_changes(self._held("m_b_bytes"), self._held("m_w_bytes"))

    def _held(self, name: str) -> IntArray:
        return units.held(self.canonical_profile[name], self.microbatches, self._memory)

    def _lags(self, direction: str, device_of: IntArray) -> IntArray:
        lags = self._clock.many(getattr(self.profile.comm(), direction))
        lags[device_of[:-1] == device_of[1:]] = 0
        return lags

    def _explicit_limits(self) -> list[float]:
        if isinstance(self.memory_limit, float | int):
            return [self.memory_limit]
        return self.memory_limit if isinstance(self.memory_limit, list) else []

    @cached_property
    def _static(self) -> list[int]:
        return [self._memory.ceil(value) for value in self.canonical_profile["m_static_bytes"]]

    def _room(self, placement: Placement, static: IntArray) -> IntArray:
        limits = self.limits(placement)
        if limits is None:
            return np.full(self.devices, UNLIMITED, dtype=np.int64)
        room = [min(self._memory.floor(limit), MEMORY_HORIZON) for limit in limits]
        return np.array(room, dtype=np.int64) - static
