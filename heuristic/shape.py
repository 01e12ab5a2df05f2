"""Which placements a schedule is defined on."""

from __future__ import annotations

from collections.abc import Sequence

from zbplan.errors import MethodError
from zbplan.instance import Instance
from zbplan.placement import Placement, interleaved, v_shape


def one_stage_per_device(instance: Instance, method: str) -> None:
    """Refuse a placement that gives a device more than one stage, whatever the devices' sequence.

    Raises
    ------
    MethodError
        Naming the first device that holds several stages.
    """
    for device, stages in enumerate(instance.stages_of):
        if len(stages) != 1:
            found = f"device {device} holds {_listed(stages)}"
            raise MethodError(method, f"is defined for one stage per device (linear placement); {found}")


def v_shaped(instance: Instance, method: str) -> None:
    """Refuse a placement that is not a V; raises ``MethodError``, naming the first device that holds other stages."""
    _require(instance, method, v_shape(instance.devices), "V")


def dealt_in_turn(instance: Instance, method: str) -> None:
    """Refuse a placement that is not interleaved; raises ``MethodError`` as ``v_shaped`` does."""
    chunks = max(2, instance.stages // instance.devices)
    _require(instance, method, interleaved(instance.devices, chunks), "interleaved")


def _require(instance: Instance, method: str, placement: Placement, name: str) -> None:
    for device, (stages, needed) in enumerate(zip(instance.stages_of, placement, strict=True)):
        if list(stages) != needed:
            found = f"device {device} holds {_listed(stages)}, not {_listed(needed)}"
            raise MethodError(method, f"is defined for the {name} placement; {found}")


def _listed(stages: Sequence[int]) -> str:
    return f"stage{'s' if len(stages) > 1 else ''} {', '.join(map(str, stages))}"
