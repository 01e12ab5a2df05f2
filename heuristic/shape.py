"""Which placements a schedule is defined on."""

from __future__ import annotations

from zbplan.errors import MethodError
from zbplan.instance import Instance


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
    """Refuse a placement that is not a V: device d of p holds stages d and 2p - 1 - d.

    Raises
    ------
    MethodError
        Naming the first device that holds other stages.
    """
    for device, stages in enumerate(instance.stages_of):
        needed = (device, 2 * instance.devices - 1 - device)
        if stages != needed:
            found = f"device {device} holds {_listed(stages)}, not {_listed(needed)}"
            raise MethodError(method, f"is defined for the V placement; {found}")


def dealt_in_turn(instance: Instance, method: str) -> None:
    """Refuse a placement that is not interleaved: two or more stages per device, dealt round robin.

    Raises
    ------
    MethodError
        Naming the first device that holds other stages.
    """
    chunks = max(2, instance.stages // instance.devices)
    for device, stages in enumerate(instance.stages_of):
        needed = tuple(range(device, instance.devices * chunks, instance.devices))
        if stages != needed:
            found = f"device {device} holds {_listed(stages)}, not {_listed(needed)}"
            raise MethodError(method, f"is defined for the interleaved placement; {found}")


def _listed(stages: tuple[int, ...]) -> str:
    return f"stage{'s' if len(stages) > 1 else ''} {', '.join(map(str, stages))}"
