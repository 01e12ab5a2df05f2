from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import pytest

from profiler.estimate_cli import main
from zbplan.problem import Problem
from zbplan.profile import Profile


def test_a_model_of_the_paper_becomes_a_problem(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    path = tmp_path / "profile.json"
    assert main(["gpt-6.2b", "--device", "h100", "-o", str(path)]) == 0
    assert "not measured: t_f_ms" in capsys.readouterr().out
    problem = {"profile": Profile.read(path).model_dump(), "devices": 8, "microbatches": 24, "memory_limit": "1x"}
    assert Problem.parse(problem).profile.stages == 8


def test_own_sizes_and_peaks(tmp_path: Path) -> None:
    path = tmp_path / "profile.json"
    sizes = ["--blocks", "2", "--hidden", "64", "--heads", "4", "--sequence", "32", "--stages", "2"]
    assert main([*sizes, "--peak-tflops", "1", "--efficiency", "1", "--json", "-o", str(path)]) == 0
    profile = Profile.read(path)
    assert profile.layers.t_w_ms[1] == pytest.approx(24 * 32 * 64 * 64 / 1e9, abs=1e-6)
    assert profile.environment["microbatch_size"] == 1


def test_missing_sizes_are_named(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["--hidden", "64"]) == 2
    assert "found no --blocks, --heads, --sequence; needed them, or one of gpt-1.5b" in capsys.readouterr().err


def test_it_needs_no_torch(tmp_path: Path) -> None:
    code = (
        "import sys; from profiler.estimate_cli import main; assert main(sys.argv[1:]) == 0; "
        "assert 'torch' not in sys.modules"
    )
    subprocess.run([sys.executable, "-c", code, "gpt-1.5b", "-o", tmp_path / "profile.json"], check=True, timeout=60)
