"""Problems whose layers are still to be cut."""

from __future__ import annotations

from typing import Any

from hypothesis import strategies as st

from tests.heuristic.problems import published_rows
from tests.strategies import BYTES, TIMES
from zbplan.problem import Problem

TIMES_AND_MEMORY = ("t_f_ms", "t_b_ms", "t_w_ms", "m_b_bytes", "m_w_bytes")


def layered(layers: dict[str, Any], *, devices: int, microbatches: int, comm: Any = 0, **changes: Any) -> Problem:
    """A problem that leaves the cut open; fields of the layers that are lists say how many there are."""
    count = max(len(value) for value in layers.values() if isinstance(value, list))
    columns = {"count": count, "m_b_bytes": 1, "m_w_bytes": 1, **layers}
    stages = {"stages": 1, "t_f_ms": 1, "t_b_ms": 1, "t_w_ms": 1, "m_b_bytes": 1, "m_w_bytes": 1}
    profile = {**stages, "t_comm_ms": comm, "layers": columns}
    return Problem.parse({"profile": profile, "devices": devices, "microbatches": microbatches, **changes})


def uneven(layers_per_stage: int) -> dict[str, Any]:
    """The published uneven row, a real 32-layer model, with each stage in equal layers and the cut left open."""
    (row,) = [row for row in published_rows() if "hetero example" in row["id"]]
    profile = row["problem"]["profile"]
    columns = {
        name: [round(value / layers_per_stage, 6) for value in profile[name] for _ in range(layers_per_stage)]
        for name in TIMES_AND_MEMORY
    }
    layers = {"count": layers_per_stage * profile["stages"], **columns}
    return {**row["problem"], "placement": "auto", "profile": {**profile, "layers": layers}}


@st.composite
def open_problems(draw: st.DrawFn, *, max_layers: int = 9, max_devices: int = 3) -> Problem:
    """Draw a problem with open layers, under any limit, also one that nothing fits into."""
    devices = draw(st.integers(1, max_devices))
    count = draw(st.integers(devices, max_layers))
    layers: dict[str, Any] = {}
    for field in ("t_f_ms", "t_b_ms", "t_w_ms"):
        layers[field] = draw(st.lists(TIMES, min_size=count, max_size=count))
    for field in ("m_b_bytes", "m_w_bytes", "m_static_bytes", "m_peak_bytes", "boundary_bytes"):
        layers[field] = draw(st.one_of(BYTES, st.lists(BYTES, min_size=count, max_size=count)))
    if draw(st.booleans()):
        layers["t_bw_ms"] = draw(st.lists(TIMES, min_size=count, max_size=count))
    layers["splittable"] = draw(st.one_of(st.just(True), st.lists(st.booleans(), min_size=count, max_size=count)))
    bytes_each = st.floats(0, 60).map(lambda value: round(value, 1))
    limit = draw(
        st.one_of(
            st.none(),
            st.sampled_from(["0.5x", "1x", "1.5x"]),
            bytes_each,
            st.lists(bytes_each, min_size=devices, max_size=devices),
        )
    )
    return layered(
        layers,
        devices=devices,
        microbatches=draw(st.integers(1, 4)),
        comm=draw(TIMES),
        memory_limit=limit,
        optimizer=draw(st.sampled_from(["synchronous", "post_validated"])),
    )
