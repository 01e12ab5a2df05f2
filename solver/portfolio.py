"""Which parts try to improve on the constructive plan and the analytic bound, and in what sequence.

First what takes fractions of a second and often closes the gap, in this process; then what may take all the time
there is, each in a process of its own that can be killed.
"""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

from solver.bounds import LowerBound, wave_counts, windows_of
from solver.device_ops import DeviceOps
from solver.lane import Lane
from solver.least import Least
from solver.process import External
from solver.search import Part, Search
from solver.single_device import SingleDevice, single_device_bound
from solver.wave_search import WaveSearch
from zbplan.instance import Instance

QUIET_TRIES = 600
"""Tries without a better plan after which the search over waves ends."""

LEAST_PROCESS_S = 1.0
"""Seconds without which a process is not worth starting."""

CLOSE = 8
"""States of equal counts that the close look at a device keeps apart."""

NEARLY = 0.97
"""Devices get a close look if they need at least this part of what the worst one needs."""

MOST_PAIRS = 60_000
"""Open pairs of ops up to which an exact model is built."""

FEW_PAIRS = 20_000
"""Open pairs of ops up to which CP-SAT often proves the optimum within seconds, once it starts from a good plan."""


def waves(search: Search, lane: Lane) -> None:
    """Search for plans from the wave that proves the bound."""
    counts = wave_counts(lane.instance, lane.bound.ticks)
    if counts is None:
        return
    with search.running("waves"), search.allotted(0.4):
        lowest, quiet = lane.ticks, 0
        for objective, orders in WaveSearch(lane.instance, np.array(counts)).tries():
            quiet += 1
            if objective < lowest and search.offer(lane, orders, "waves"):
                lowest, quiet = objective, 0
            if quiet > QUIET_TRIES or not search.goes_on(lane):
                return


def single_devices(search: Search, lane: Lane) -> None:
    """Prove what each device by itself cannot do faster: all of them roughly, then those that need longest closely."""
    least = Least(lane.instance)
    if not SingleDevice.applies(least):
        return
    with search.running("single_devices"), search.allotted(0.2):
        rough = _alone(search, lane, least, _longest_first(least), width=1)
        near = [device for device in rough if rough[device] >= NEARLY * max(rough.values())]
        _alone(search, lane, least, sorted(near, key=rough.__getitem__, reverse=True), width=CLOSE)


def _alone(search: Search, lane: Lane, least: Least, devices: Sequence[int], width: int) -> dict[int, int]:
    """Raise the bound to what devices cannot do faster; return what was proven of each in the time there is."""
    proven: dict[int, int] = {}
    for device in devices:
        if not search.goes_on(lane):
            break
        proven[device] = single_device_bound(
            least, device, target=lane.ticks, width=width, stop=lambda: not search.goes_on(lane)
        )
        reason = f"device {device} alone cannot run its ops faster within its memory"
        search.raise_bound(lane, LowerBound(proven[device], reason), "single_devices")
    return proven


def _longest_first(least: Least) -> list[int]:
    """Return the devices, those that need longest first; of about equal ones the ends, where microbatches turn."""
    spans = [window.span for window in windows_of(least)]
    last = len(spans) - 1
    return sorted(range(len(spans)), key=lambda at: (-round(100 * spans[at] / max(spans)), min(last - at, at), -at))


def policies(search: Search, lane: Lane) -> None:
    """Search longer for constructive plans, in a process."""
    _start(External("policies"), search, lane)


def policies_first(search: Search, lane: Lane) -> None:
    """Search longer for constructive plans, and leave time to what starts from them."""
    with search.allotted(0.2 if open_pairs(lane.instance) <= FEW_PAIRS else 0.35):
        policies(search, lane)


def improve(search: Search, lane: Lane) -> None:
    """Improve the plan by windows and repeating blocks, in a process; leave to CP-SAT what it can make use of."""
    pairs = open_pairs(lane.instance)
    with search.allotted(0.15 if pairs <= FEW_PAIRS else 0.7 if pairs <= MOST_PAIRS else 1):
        _start(External("improve"), search, lane)


def cp_sat(search: Search, lane: Lane) -> None:
    """Solve exactly with CP-SAT, in a process, where the model is not too large."""
    if open_pairs(lane.instance) <= MOST_PAIRS:
        _start(External("cp_sat"), search, lane)


def ilp_highs(search: Search, lane: Lane) -> None:
    """Solve Appendix G's program with HiGHS, in a process, in half of the time: it finds and proves most."""
    if open_pairs(lane.instance) <= MOST_PAIRS:
        with search.allotted(0.5):
            _start(External("ilp_highs"), search, lane)


def ilp_cbc(search: Search, lane: Lane) -> None:
    """Solve Appendix G's program with CBC, in a process."""
    if open_pairs(lane.instance) <= MOST_PAIRS:
        _start(External("ilp_cbc"), search, lane)


def _start(part: Part, search: Search, lane: Lane) -> None:
    if search.remaining_s >= LEAST_PROCESS_S:
        part(search, lane)


def open_pairs(instance: Instance) -> int:
    """Return about how many pairs of ops an exact model has to put in sequence."""
    per_device = np.bincount(instance.device_of) * 3 * instance.microbatches
    equal = DeviceOps(instance).equal_microbatches
    return int((per_device**2 // (6 if equal else 2)).sum())


PARTS: dict[str, tuple[Part, ...]] = {
    "auto": (waves, single_devices, policies_first, improve, cp_sat),
    "heuristic": (policies,),
    "cp_sat": (single_devices, cp_sat),
    "ilp": (single_devices, ilp_highs, ilp_cbc),
}
"""What runs for each method; constructive plans and analytic bounds are there before."""
