"""Placement: which stages each device holds."""

from __future__ import annotations

from zbplan.errors import Finding, InvalidInputError

Placement = list[list[int]]
"""Per device its stages in forward order.

``[[0], [1]]`` is linear, ``[[0, 2], [1, 3]]`` interleaved, ``[[0, 3], [1, 2]]`` V.
"""

NAMES = ("auto", "linear", "interleaved", "v")

MOST_CHUNKS = 4
"""Stages per device up to which ``auto`` cuts layers for an interleaved placement."""


def linear(devices: int) -> Placement:
    """Return one stage per device."""
    return [[device] for device in range(devices)]


def interleaved(devices: int, chunks: int) -> Placement:
    """Return ``chunks`` stages per device, dealt round robin."""
    return [list(range(device, devices * chunks, devices)) for device in range(devices)]


def v_shape(devices: int) -> Placement:
    """Return two stages per device, down the devices and back up (paper, section 6)."""
    return [[device, 2 * devices - 1 - device] for device in range(devices)]


def of_layers(layers: int, devices: int) -> list[Placement]:
    """Return the placements that ``auto`` compares for this many layers, where it may cut them anew.

    Linear, V, and 2 to 4 chunks per device interleaved, as far as every stage gets a layer.
    """
    if devices == 1:
        return [linear(1)]
    every = [linear(devices), v_shape(devices), *(interleaved(devices, chunks) for chunks in range(2, MOST_CHUNKS + 1))]
    return [placement for placement in every if stages_in(placement) <= layers]


def stages_in(placement: Placement) -> int:
    """Return how many stages a placement places."""
    return sum(map(len, placement))


def devices_of(placement: Placement) -> list[int]:
    """Return the device that holds each stage."""
    return [device for _, device in sorted((stage, device) for device, held in enumerate(placement) for stage in held)]


def candidates(name: str, stages: int, devices: int) -> list[Placement]:
    """Return the placements that a name allows for this many stages and devices; several only for ``auto``.

    Raises
    ------
    InvalidInputError
        When the number of stages does not fit the name.
    """
    chunks, rest = divmod(stages, devices)
    if name not in NAMES:
        _refuse(f"str {name!r}", f"one of {', '.join(NAMES)}, or a list of stages per device")
    if stages < devices:
        _refuse(f"{devices} devices for {stages} stages", "at least one stage per device: fewer devices or more stages")
    if name == "linear" and stages != devices:
        _refuse(f"'linear' with {stages} stages on {devices} devices", f"{devices} stages, one per device")
    if name == "v" and stages != 2 * devices:
        _refuse(f"'v' with {stages} stages on {devices} devices", f"{2 * devices} stages, two per device")
    if name == "interleaved" and (rest or chunks < 2):
        needed = f"a multiple of {devices} stages, two or more per device (such as {2 * devices})"
        _refuse(f"'interleaved' with {stages} stages on {devices} devices", needed)
    if name == "auto" and rest:
        _refuse(f"'auto' with {stages} stages on {devices} devices", f"a multiple of {devices} stages, or a list")
    if name == "linear" or (name == "auto" and chunks == 1):
        return [linear(devices)]
    if name == "v":
        return [v_shape(devices)]
    folded = [v_shape(devices)] if name == "auto" and chunks == 2 else []
    return [*folded, interleaved(devices, chunks)]


def custom(placement: Placement, stages: int, devices: int) -> Placement:
    """Check a list of stages per device and return it with each device's stages in forward order.

    Raises
    ------
    InvalidInputError
        Unless every stage stands exactly once and every device holds at least one.
    """
    if len(placement) != devices:
        _refuse(f"stages for {len(placement)} devices", f"{devices} lists, one per device")
    seen: dict[int, int] = {}
    for device, held in enumerate(placement):
        if not held:
            _refuse("no stage", "at least one stage", f"$.placement[{device}]")
        for position, stage in enumerate(held):
            path = f"$.placement[{device}][{position}]"
            if not 0 <= stage < stages:
                _refuse(f"stage {stage}", f"a stage from 0 to {stages - 1}", path)
            if stage in seen:
                _refuse(f"stage {stage}, also on device {seen[stage]}", "every stage once", path)
            seen[stage] = device
    missing = [stage for stage in range(stages) if stage not in seen]
    if missing:
        _refuse(f"no device for stage {missing[0]} ({len(seen)} of {stages} stages placed)", "every stage once")
    return [sorted(held) for held in placement]


def _refuse(found: str, needed: str, path: str = "$.placement") -> None:
    raise InvalidInputError([Finding(path, found, needed)])
