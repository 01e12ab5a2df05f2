from __future__ import annotations

import json
from pathlib import Path

import pytest

from profiler.cli import main
from tests.processes import torchrun
from tests.profiler.emulated import F_MS, HELD, KEPT, WIDTH
from zbplan.problem import Problem
from zbplan.profile import Profile

ROW = WIDTH * 4
SPLITTER = ["--splitter", "tests.profiler.emulated:split"]


@pytest.fixture(scope="module")
def measured(tmp_path_factory: pytest.TempPathFactory) -> Profile:
    """Four emulated stages on two ranks, in the V placement."""
    path = tmp_path_factory.mktemp("measured") / "profile.json"
    layout = ["--stages", "4", "--placement", "v", "--turns", "together", "--name", "four"]
    options = ["--warmup", "1", "--samples", "3", "--force", "--output", str(path)]
    ranks = torchrun(2, "profiler", "tests.profiler.emulated:staged_model", *SPLITTER, *layout, *options)
    assert ranks.returncode == 0, ranks.stderr
    assert f"wrote {path}" in ranks.stderr
    return Profile.read(path)


def test_every_rank_measures_the_stages_that_it_holds(measured: Profile) -> None:
    assert measured.name == "four"
    assert all(found >= (1 + stage / 10) * F_MS for stage, found in enumerate(measured.t_f_ms))  # slept as long
    assert measured.m_b_bytes == [ROW + HELD + ROW] * 3 + [ROW + HELD + 4]
    assert measured.m_w_bytes == [KEPT] * 4
    assert measured.boundary_bytes == [ROW, ROW, ROW, 0]


def test_transfers_are_measured_between_real_processes(measured: Profile) -> None:
    comm, samples = measured.comm(), measured.statistics.t_comm_ms
    for way in ("forward", "backward"):
        first, same_device, last = getattr(comm, way)
        assert min(first, last) > 0
        assert same_device == 0
        assert getattr(samples, way).count == [18, 0, 18]
    assert measured.environment["placement"] == [[0, 3], [1, 2]]
    assert measured.environment["turns"] == "together"


def test_the_profile_makes_a_problem_for_its_placement(measured: Profile) -> None:
    problem = {"profile": json.loads(measured.to_json()), "devices": 2, "microbatches": 4, "placement": "v"}
    assert Problem.parse(problem).profile == measured


def test_a_failing_stage_ends_all_ranks_with_one_message(tmp_path: Path) -> None:
    mode = ["--engine-mode", "fused", "--turns", "one_by_one"]
    options = ["--warmup", "1", "--samples", "3", "--output", str(tmp_path / "profile.json")]
    ranks = torchrun(2, "profiler", "tests.profiler.emulated:broken_model", *mode, *options)
    assert ranks.returncode != 0
    assert ranks.stderr.count("python -m profiler: stage 1, BW: found RuntimeError: a hook said no") == 1
    assert not (tmp_path / "profile.json").exists()


def test_a_process_that_is_gone_ends_the_others_with_a_message(tmp_path: Path) -> None:
    options = ["--engine-mode", "fused", "--warmup", "1", "--samples", "3", "--output", str(tmp_path / "profile.json")]
    ranks = torchrun(2, "profiler", "tests.profiler.emulated:leaving_model", *options)
    assert ranks.returncode != 0
    assert "python -m profiler: rank 0, measuring with the others: found " in ranks.stderr
    assert "needed every rank of the group to take part: look for the rank that failed first" in ranks.stderr
    assert not (tmp_path / "profile.json").exists()


def run(*arguments: str) -> int:
    return main([*arguments, "--device", "cpu", "--warmup", "1", "--samples", "3"])


def test_one_process_writes_a_profile_and_shows_it(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    path = tmp_path / "profile.json"
    assert (
        run("tests.profiler.emulated:staged_model", "--stages", "2", "--t-comm-ms", "0.5", *SPLITTER, "-o", str(path))
        == 0
    )
    assert Profile.read(path).t_comm_ms == 0.5
    assert capsys.readouterr().out.startswith("stage ")


def test_a_profile_that_cannot_be_written_is_printed(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    path = tmp_path / "missing" / "profile.json"
    assert run("tests.profiler.emulated:staged_model", *SPLITTER, "--output", str(path)) == 2
    said = capsys.readouterr()
    assert Profile.parse_json(said.out.splitlines()[-1]).stages == 1
    assert f"{path}: found No such file or directory; needed a file to write" in said.err


@pytest.mark.parametrize(
    ("arguments", "complaint"),
    [
        (["tests.profiler.emulated:staged_model"], "found no splitter; needed one for weight_grad_store (--splitter)"),
        (["nowhere:model", *SPLITTER], "nowhere:model: found ModuleNotFoundError"),
        (["tests.profiler.emulated:staged_model", *SPLITTER, "--samples", "2"], "found 2 steady samples"),
        (["tests.profiler.emulated:staged_model", *SPLITTER, "--stages", "2"], "cannot measure T_comm"),
        (["tests.profiler.emulated:staged_model", *SPLITTER, "--stages", "0"], "found 0 stages; needed"),
        (["tests.profiler.emulated:staged_model", *SPLITTER, "--unsplit", "x"], "--unsplit: found 'x'; needed numbers"),
        (
            ["tests.profiler.emulated:staged_model", *SPLITTER, "--tensor-parallel", "2"],
            "found 1 processes for",
        ),
        (["tests.profiler.emulated:scattered_model", *SPLITTER], "needed 10% or less: measure on machines that do"),
    ],
)
def test_bad_usage_is_one_message_and_status_2(
    arguments: list[str], complaint: str, capsys: pytest.CaptureFixture[str]
) -> None:
    assert main([arguments[0], "--device", "cpu", *arguments[1:]]) == 2
    said = capsys.readouterr().err
    assert said.startswith("python -m profiler: ")
    assert complaint in said


def test_ranks_that_cannot_meet_are_one_message(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setenv("WORLD_SIZE", "2")
    monkeypatch.setenv("RANK", "0")
    monkeypatch.delenv("MASTER_ADDR", raising=False)
    assert run("tests.profiler.emulated:staged_model", *SPLITTER) == 2
    assert "joining the ranks: found " in capsys.readouterr().err


def test_help_shows_an_example(capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(SystemExit, match="0"):
        main(["--help"], prog="zbplan profile", splitter="a:b")
    said = capsys.readouterr().out
    assert said.startswith("usage: zbplan profile")
    assert "torchrun --standalone" in said
    assert "a:b" in said


def test_layers_are_measured_for_any_cut(tmp_path: Path) -> None:
    path = tmp_path / "profile.json"
    given = ["--layers", "--stages", "2", "--t-comm-ms", "0.5"]
    assert run("tests.profiler.emulated:layered_model", *given, *SPLITTER, "-o", str(path)) == 0
    profile = Profile.read(path)
    assert profile.t_f_ms == [pytest.approx(3 * F_MS), pytest.approx(2 * F_MS)]
    assert profile.cut([0, 1]).t_f_ms == [pytest.approx(2 * F_MS), pytest.approx(3 * F_MS)]


def test_json_is_all_that_stdout_holds(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    path = tmp_path / "profile.json"
    assert run("tests.profiler.emulated:staged_model", "--json", *SPLITTER, "-o", str(path), "--name", "one") == 0
    said = capsys.readouterr()
    assert Profile.parse_json(said.out) == Profile.read(path)
    assert Profile.read(path).name == "one"
    assert said.err == f"wrote {path}\n"


def test_a_profile_is_written_before_it_is_posted(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    path = tmp_path / "profile.json"
    assert run("tests.profiler.emulated:staged_model", *SPLITTER, "-o", str(path), "--post", "nowhere") == 2
    assert "nowhere/v1/profiles: found" in capsys.readouterr().err
    assert Profile.read(path).stages == 1


def test_in_a_tensor_parallel_group_the_slowest_process_counts(tmp_path: Path) -> None:
    path = tmp_path / "profile.json"
    options = ["--tensor-parallel", "2", "--warmup", "1", "--samples", "3", "--force", "-o", str(path)]
    ranks = torchrun(2, "profiler", "tests.profiler.emulated:sharded_model", *SPLITTER, *options)
    assert ranks.returncode == 0, ranks.stderr
    profile = Profile.read(path)
    assert profile.stages == 1
    assert profile.t_f_ms[0] >= 3 * F_MS  # as on rank 1, whose shard is the slower one
    assert profile.environment["tensor_parallel"] == 2
