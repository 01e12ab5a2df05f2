import pytest
import torch
from torch import Tensor, nn

from profiler.errors import MeasurementError
from profiler.microbatch import Stage
from profiler.samples import Steps
from profiler.stage import StageFigures, Way, measure_stage
from runtime_client.weight_grad_store import split as split_linears
from tests.older_torch import needs_native_split
from tests.profiler.emulated import B_MS, F_MS, HELD, KEPT, W_MS, WIDTH, Broken, Emulated, sgd, split
from zbplan.duration import NEVER

ROW = WIDTH * 4
CPU = torch.device("cpu")


def figures(
    module: nn.Module, *, splitter=split, mode=None, first: bool = False, loss=None, shape=(WIDTH,), unsplit=()
) -> StageFigures:
    stage = Stage(0 if first else 1, module, (torch.ones(shape, requires_grad=not first),), loss)
    mode = mode or ("weight_grad_store" if splitter else "fused")
    return measure_stage(stage, Way(mode, splitter, frozenset(unsplit), sgd, Steps(1, 3), CPU))


def about(milliseconds: float) -> object:
    return pytest.approx(milliseconds, rel=1e-9)


def test_sleeps_are_measured_as_f_b_w_and_bw() -> None:
    times = {field: duration.median_ms for field, duration in figures(Emulated()).times.items()}
    assert times == {
        "t_f_ms": about(F_MS),
        "t_b_ms": about(B_MS),
        "t_w_ms": about(W_MS),
        "t_bw_ms": about(B_MS + W_MS),
    }


def test_a_slow_first_step_is_dropped() -> None:
    found = figures(Emulated(first_ms=200)).times["t_f_ms"]
    assert found.median_ms == about(F_MS)
    assert found.samples == 3


def test_bytes_are_exact() -> None:
    assert figures(Emulated()).memory == {
        "m_b_bytes": ROW + HELD + ROW,  # input, what F saved, output
        "m_w_bytes": KEPT,
        "m_peak_bytes": ROW + KEPT + ROW,  # inside B: the gradient that came, what W will need, the gradient to send
        "m_static_bytes": 2 * 4,
    }


def test_stage_zero_has_b_and_w_without_an_input_gradient() -> None:
    found = figures(Emulated(), first=True)
    assert found.times["t_b_ms"].median_ms == about(B_MS)
    assert found.times["t_w_ms"].median_ms == about(W_MS)
    assert found.memory["m_peak_bytes"] == ROW + KEPT


def test_a_frozen_stage_has_no_w() -> None:
    found = figures(Emulated().requires_grad_(False))
    assert found.times["t_w_ms"] == NEVER
    assert found.times["t_b_ms"] == found.times["t_bw_ms"]
    assert found.times["t_b_ms"].median_ms == about(B_MS)
    assert found.memory["m_w_bytes"] == 0


def test_a_frozen_stage_without_input_gradient_has_f_only() -> None:
    found = figures(Emulated().requires_grad_(False), first=True)
    assert [found.times[field] for field in ("t_b_ms", "t_w_ms", "t_bw_ms")] == [NEVER] * 3
    assert found.times["t_f_ms"].median_ms == about(F_MS)
    assert found.memory["m_b_bytes"] == ROW + HELD + ROW - HELD  # no graph holds what F saved


def test_without_splitter_b_is_bw() -> None:
    found = figures(Emulated(), splitter=None)
    assert found.times["t_b_ms"] == found.times["t_bw_ms"]
    assert found.times["t_bw_ms"].median_ms == about(B_MS + W_MS)
    assert found.times["t_w_ms"] == NEVER
    assert found.memory["m_w_bytes"] == 0


def test_the_loss_belongs_to_the_last_stage() -> None:
    found = figures(Emulated(), loss=lambda output: (output * 2).sum())
    scaled, scalar = ROW, 4
    assert (
        found.memory["m_b_bytes"] == ROW + HELD + scalar + ROW - scaled
    )  # the output lives on in the graph only if saved


def test_linears_keep_input_and_output_gradient_for_w() -> None:
    linears = nn.Sequential(nn.Linear(WIDTH, 2 * WIDTH), nn.Linear(2 * WIDTH, WIDTH))
    rows = 5
    found = figures(linears, splitter=split_linears, shape=(rows, WIDTH))
    assert found.memory["m_b_bytes"] == rows * (ROW + 2 * ROW + ROW)
    assert found.memory["m_w_bytes"] == rows * (ROW + 2 * ROW + 2 * ROW + ROW)
    assert found.dtype == "float32"


def test_an_op_that_fails_is_named() -> None:
    with pytest.raises(
        MeasurementError, match=r"stage 1, BW: found RuntimeError: a hook said no; needed one that runs"
    ):
        figures(Broken())


def test_a_splitter_that_fails_is_named() -> None:
    with pytest.raises(MeasurementError, match=r"stage 1, splitting the backward: found ValueError"):
        figures(nn.Linear(WIDTH, WIDTH))  # has no emulated stage to unpack


def test_memory_that_grows_is_refused() -> None:
    with pytest.raises(MeasurementError, match=rf"stage 1: found \+{ROW} bytes alive after a microbatch's last op"):
        figures(Hoarder(), splitter=None)


class Hoarder(nn.Linear):
    """Collects its outputs."""

    def __init__(self) -> None:
        super().__init__(WIDTH, WIDTH)
        self.outputs: list[Tensor] = []

    def forward(self, x: Tensor) -> Tensor:
        y = super().forward(x)
        self.outputs.append(y.detach())
        return y


def test_what_a_module_keeps_of_its_last_microbatch_is_no_growth() -> None:
    assert figures(Keeper(), splitter=None).memory["m_w_bytes"] == 0


class Keeper(nn.Linear):
    """Remembers its last output."""

    def __init__(self) -> None:
        super().__init__(WIDTH, WIDTH)

    def forward(self, x: Tensor) -> Tensor:
        self.last = super().forward(x).detach()
        return super().forward(x)


@needs_native_split
def test_the_native_split_keeps_the_graph_until_w() -> None:
    linears = nn.Sequential(nn.Linear(WIDTH, 2 * WIDTH), nn.Linear(2 * WIDTH, WIDTH))
    rows = 5
    found = figures(linears, mode="native_split", splitter=None, shape=(rows, WIDTH))
    assert found.memory["m_b_bytes"] == rows * (ROW + 2 * ROW + ROW)
    assert found.memory["m_w_bytes"] > found.memory["m_b_bytes"]  # B adds the gradients that W starts from
    assert found.times["t_w_ms"].samples == 3


@needs_native_split
def test_the_native_split_of_stage_zero_leaves_all_to_w() -> None:
    found = figures(Emulated(), mode="native_split", splitter=None, first=True)
    assert found.times["t_b_ms"].median_ms == 0
    assert found.times["t_w_ms"].median_ms == about(B_MS + W_MS)
    assert found.memory["m_w_bytes"] == found.memory["m_b_bytes"] + ROW  # the gradient that came


def test_an_unsplit_stage_runs_bw_and_says_so() -> None:
    found = figures(Emulated(), unsplit={1})
    assert not found.splittable
    assert found.times["t_b_ms"] == found.times["t_bw_ms"]
    assert found.times["t_w_ms"] == NEVER


def test_what_passes_between_the_ops_is_in_the_microbatch_only() -> None:
    assert figures(Emulated()).microbatch.median_ms == about(F_MS + B_MS + W_MS)


def test_of_the_processes_of_a_device_the_most_counts() -> None:
    slow, wide = figures(Emulated(factor=2.0)), figures(nn.Linear(WIDTH, WIDTH), splitter=None)
    worst = StageFigures.worst([wide, slow])
    assert worst.times == slow.times
    assert worst.memory["m_static_bytes"] == wide.memory["m_static_bytes"]
    assert worst.memory["m_b_bytes"] == slow.memory["m_b_bytes"]
