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
            found = f"device {device} holds stages {', '.join(map(str, stages))}"
            raise MethodError(method, f"is defined for one stage per device (linear placement); {found}")
