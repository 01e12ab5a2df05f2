from __future__ import annotations

import json
from pathlib import Path

import pytest

from tests.runtime_client.plans import zb_h1
from tests.zbplan.test_cli import invoke
from tests.zbplan.traces import stretched
from zbplan.formats.chrome import of_trace
from zbplan.plan import Plan
from zbplan.profile import Profile
from zbplan.replan import measured_profile
from zbplan.trace import Trace
from zbplan.trace_report import report
from zbplan.validate import validate
from zbplan.verdict import verdict

PLAN = zb_h1(2, 4)
SLOWER = "device 1's B (stage 1) is 20% slower than profiled: profile again, or plan on this trace (--replan)"


@pytest.fixture
def trace(tmp_path: Path) -> Trace:
    """What a job noted whose stage 1 takes longer for its B than planned."""

    def stretch(kind: str, stage: int, *_: int) -> float:
        return 1.2 if (kind, stage) == ("B", 1) else 1.0

    trace = stretched(PLAN, stretch, steps=5, tokens=4096, peak_bytes=5.0)
    (tmp_path / "plan.json").write_text(PLAN.to_json())
    (tmp_path / "trace.json").write_text(trace.to_json())
    return trace


def test_the_verdict_stands_first_and_everything_below(trace: Trace, tmp_path: Path) -> None:
    status, stdout, stderr = invoke("trace", tmp_path / "plan.json", tmp_path / "trace.json")
    assert (status, stderr) == (0, "")
    lines = stdout.splitlines()
    sentences = verdict(report(PLAN, trace))
    assert lines[: len(sentences)] == [f"• {sentence}" for sentence in sentences]
    assert SLOWER in sentences
    for start in (
        "iteration ms: planned",
        "bubble: planned",
        "bubble in the steady state: planned",
        "first off the plan",
    ):
        assert sum(line.startswith(start) for line in lines) == 1
    assert any(line.endswith("tokens per second") for line in lines)
    assert any(line.split()[:3] == ["1", "1", "B"] and "+20.0%" in line for line in lines)
    assert sum(" to " in line and line.split()[:2] == ["1", "1"] for line in lines) == 3
    assert "…" not in stdout
    assert lines[-2].split()[0] == "0"
    assert lines[-1].split()[-2:] == ["5", "B"]


def test_as_json_it_holds_every_op_and_the_verdict(trace: Trace, tmp_path: Path) -> None:
    status, stdout, _ = invoke("trace", tmp_path / "plan.json", tmp_path / "trace.json", "--json")
    assert status == 0
    found = report(PLAN, trace)
    assert json.loads(stdout) == {"verdict": verdict(found), **json.loads(json.dumps(found.as_json()))}


def test_chrome_writes_the_trace_for_perfetto(trace: Trace, tmp_path: Path) -> None:
    files = (tmp_path / "plan.json", tmp_path / "trace.json")
    assert invoke("trace", *files, "--chrome", tmp_path / "chrome.json")[0] == 0
    assert (tmp_path / "chrome.json").read_text() == f"{of_trace(PLAN, trace)}\n"


def test_replan_writes_a_profile_that_plans(trace: Trace, tmp_path: Path) -> None:
    files = (tmp_path / "plan.json", tmp_path / "trace.json")
    assert invoke("trace", *files, "--replan", tmp_path / "profile.json")[0] == 0
    profile = Profile.read(tmp_path / "profile.json")
    assert profile == measured_profile(PLAN, trace)
    problem = {"profile": profile.model_dump(), "devices": 2, "microbatches": 4, "method": "zb_h1"}
    (tmp_path / "problem.json").write_text(json.dumps(problem))
    assert invoke("plan", tmp_path / "problem.json", "-o", tmp_path / "again.json")[0] == 0
    assert validate(Plan.read(tmp_path / "again.json")) == []


def test_a_trace_that_is_no_ground_for_a_plan_is_refused_unless_forced(trace: Trace, tmp_path: Path) -> None:
    scattered = stretched(PLAN, lambda kind, *rest: 1 + rest[-1] % 3 if kind == "W" else 1.0, steps=5, first_step=2)
    (tmp_path / "trace.json").write_text(scattered.to_json())
    arguments = ("trace", tmp_path / "plan.json", tmp_path / "trace.json", "--replan", tmp_path / "profile.json")
    status, _, stderr = invoke(*arguments)
    assert status == 2
    assert "zbplan: t_w_ms of stage 0: found a spread of " in stderr
    assert not (tmp_path / "profile.json").exists()
    assert invoke(*arguments, "--force")[0] == 0
    assert Profile.read(tmp_path / "profile.json").forced


def test_a_trace_of_another_plan_is_refused(trace: Trace, tmp_path: Path) -> None:
    (tmp_path / "other.json").write_text(zb_h1(2, 5).to_json())
    status, stdout, stderr = invoke("trace", tmp_path / "other.json", tmp_path / "trace.json")
    assert (status, stdout) == (2, "")
    assert stderr.startswith(f"zbplan: $.plan_id: found {PLAN.plan_id}; needed ")


@pytest.mark.parametrize("option", ["--chrome", "--replan"])
def test_a_file_that_cannot_be_written_is_named_before_anything_is_printed(
    trace: Trace, tmp_path: Path, option: str
) -> None:
    files = (tmp_path / "plan.json", tmp_path / "trace.json")
    status, stdout, stderr = invoke("trace", *files, option, tmp_path / "none" / "file")
    assert (status, stdout) == (2, "")
    assert "needed a file in a folder that can be written" in stderr


def test_a_damaged_trace_is_named_with_its_path(trace: Trace, tmp_path: Path) -> None:
    value = trace.model_dump()
    value["steps"][1]["devices"][0]["end_ms"][2] = -1.0
    (tmp_path / "trace.json").write_text(json.dumps(value))
    status, _, stderr = invoke("trace", tmp_path / "plan.json", tmp_path / "trace.json")
    assert status == 2
    assert f"zbplan: {tmp_path / 'trace.json'} $.steps[1].devices[0].end_ms[2]: found -1" in stderr
