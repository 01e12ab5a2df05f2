from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
from typer.testing import CliRunner

from zbplan.cli import app
from zbplan.problem import Problem

WORK = [0, *[2] * 14, 4]
LAYERS = {"count": 16, "t_f_ms": WORK, "t_b_ms": WORK, "t_w_ms": WORK, "m_b_bytes": 10, "m_w_bytes": 10}
PROFILE = {"stages": 4, "t_f_ms": 8, "t_b_ms": 8, "t_w_ms": 8, "t_comm_ms": 0.5, "m_b_bytes": 40, "m_w_bytes": 40}
ASKED = ("--devices", "4", "--microbatches", "8")


def partition(folder: Path, *arguments: str, profile: dict[str, Any] | None = None) -> tuple[int, str, str]:
    """Write a profile and cut it; return exit status, stdout and stderr."""
    (folder / "profile.json").write_text(json.dumps(profile or {**PROFILE, "layers": LAYERS}))
    done = CliRunner().invoke(app, ["partition", str(folder / "profile.json"), *arguments])
    assert done.exception is None or isinstance(done.exception, SystemExit), done.exception
    return done.exit_code, done.stdout, done.stderr


def test_every_placement_has_a_row_and_the_gain_is_told(tmp_path: Path) -> None:
    status, stdout, stderr = partition(tmp_path, *ASKED, "--memory-limit", "2x")
    assert (status, stderr) == (0, "")
    names = [line[2:].split()[0] for line in stdout.splitlines() if line[:2] in ("  ", "* ") and line[2] != " "]
    assert names == ["placement", "linear", "v", "interleaved", "interleaved", "interleaved"]
    assert "less than the even cut, at best " in stdout
    assert "less than one layer fewer on the first and last stage, at best " in stdout


def test_as_json_the_best_cut_is_marked_and_never_worse_than_the_usual_ones(tmp_path: Path) -> None:
    status, stdout, _ = partition(tmp_path, *ASKED, "--placement", "linear", "--json")
    value = json.loads(stdout)
    (cut,) = value["cuts"]
    assert (status, value["layers"], cut["best"]) == (0, 16, True)
    assert cut["placement"] == [[0], [1], [2], [3]]
    assert cut["starts"] == [0, 5, 9, 13]
    assert cut["gain_over_even"] == 1 - cut["iteration_ms"] / cut["even_ms"] > 0.1
    assert cut["gain_over_shorter_ends"] >= 0


def test_the_problem_of_the_best_cut_is_written(tmp_path: Path) -> None:
    target = tmp_path / "problem.json"
    arguments = (
        *ASKED,
        "--placement",
        "linear",
        "--memory-limit",
        "800,800,800,800.5",
        "--optimizer",
        "post_validated",
    )
    assert partition(tmp_path, *arguments, "-o", str(target))[0] == 0
    problem = Problem.read(target)
    assert problem.profile.t_f_ms == [8, 8, 8, 8]
    assert (problem.placement, problem.open_layers) == ([[0], [1], [2], [3]], None)
    assert (problem.memory_limit, problem.optimizer) == ([800, 800, 800, 800.5], "post_validated")


@pytest.mark.parametrize("more", [(), ("--json",)])
def test_a_problem_on_standard_output_stands_there_alone(tmp_path: Path, more: tuple[str, ...]) -> None:
    status, stdout, stderr = partition(tmp_path, *ASKED, "--placement", "linear", "-o", "-", *more)
    assert (status, stderr) == (0, "")
    assert Problem.parse_json(stdout).placement == [[0], [1], [2], [3]]


def test_an_exact_search_is_no_worse(tmp_path: Path) -> None:
    found = [
        json.loads(partition(tmp_path, *ASKED, "--placement", "linear", "--json", *more)[1])
        for more in ((), ("--exact",))
    ]
    assert found[1]["cuts"][0]["iteration_ms"] <= found[0]["cuts"][0]["iteration_ms"]


@pytest.mark.parametrize(
    ("arguments", "complaint"),
    [
        (("--devices", "17", "--microbatches", "8"), "$.profile.layers.count: found 16 layers for 17 devices"),
        ((*ASKED, "--placement", "ring"), "--placement: found 'ring'; needed one of auto, linear, interleaved, v"),
        (
            ("--devices", "9", "--microbatches", "8", "--placement", "v"),
            "--placement: found 'v' with 16 layers on 9 devices; needed two devices or more, and 18 layers or more",
        ),
        ((*ASKED, "--memory-limit", "1p"), "$.memory_limit: found str '1p'; needed bytes"),
        ((*ASKED, "--memory-limit", "1,2"), "$.memory_limit: found 2 entries; needed 4, one per device"),
        ((*ASKED, "--optimizer", "adam"), "$.optimizer"),
        ((*ASKED, "-o", "none/problem.json"), "needed a file in a folder that can be written"),
    ],
)
def test_what_cannot_be_cut_is_refused(tmp_path: Path, arguments: tuple[str, ...], complaint: str) -> None:
    status, stdout, stderr = partition(tmp_path, *arguments)
    assert (status, stdout) == (2, "")
    assert complaint in stderr


def test_a_limit_that_is_too_small_says_what_would_be_enough(tmp_path: Path) -> None:
    status, _, stderr = partition(tmp_path, *ASKED, "--memory-limit", "39")
    assert status == 1
    assert "memory limit too small for any cut of the layers; on the cut that came closest, in bytes: " in stderr
    assert "device 0 has 39 and needs 40; device 1 has 39 and needs 40" in stderr
    assert partition(tmp_path, *ASKED, "--memory-limit", "40")[0] == 0


def test_too_many_cuts_for_an_exact_search_are_counted(tmp_path: Path) -> None:
    layers = {**LAYERS, "count": 40, **{name: [1] * 40 for name in ("t_f_ms", "t_b_ms", "t_w_ms")}}
    arguments = ("--devices", "8", "--microbatches", "8", "--placement", "linear", "--exact")
    status, _, stderr = partition(tmp_path, *arguments, profile={**PROFILE, "layers": layers})
    assert status == 2
    assert "found 40 layers, which can be cut in 8 stages in 15380937 ways; needed at most 20000 ways" in stderr


def test_a_profile_without_layers_is_refused(tmp_path: Path) -> None:
    status, _, stderr = partition(tmp_path, *ASKED, profile=PROFILE)
    assert status == 2
    assert "profile.json $.layers: found nothing; needed a profile per layer" in stderr
