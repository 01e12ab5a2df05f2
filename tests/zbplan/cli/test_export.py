from __future__ import annotations

import json
import re
from pathlib import Path

import pytest

from runtime_client.lowering import lower
from tests.runtime_client.plans import plan_of, problem_of, zb_h1
from tests.zbplan.test_cli import invoke
from zbplan.formats import chrome, pytorch_csv
from zbplan.instance import Orders
from zbplan.placement import linear
from zbplan.plan import Plan


@pytest.fixture
def plan(tmp_path: Path) -> Plan:
    plan = zb_h1(2, 3)
    (tmp_path / "plan.json").write_text(plan.to_json())
    return plan


def test_each_format_is_written(plan: Plan, tmp_path: Path) -> None:
    needed = {
        "csv": pytorch_csv.write(pytorch_csv.from_plan(plan)),
        "csv-comms": pytorch_csv.write(pytorch_csv.from_actions(lower(plan))),
        "chrome": f"{chrome.of_plan(plan)}\n",
    }
    for name, text in needed.items():
        status, stdout, _ = invoke("export", tmp_path / "plan.json", "--format", name, "-o", tmp_path / "out")
        assert (status, stdout) == (0, "")
        assert (tmp_path / "out").read_text() == text


def test_standard_output_takes_the_text_and_stderr_what_it_does_not_say(plan: Plan, tmp_path: Path) -> None:
    status, stdout, stderr = invoke("export", tmp_path / "plan.json", "-f", "csv")
    assert status == 0
    assert pytorch_csv.to_plan(pytorch_csv.read(stdout), plan.asked).plan_id == plan.plan_id
    assert re.match(r"zbplan: warning: the plan's times were measured with a weight-gradient store", stderr)
    assert invoke("export", tmp_path / "plan.json", "-f", "chrome")[2] == ""


def test_a_plan_that_torch_would_train_wrongly_is_refused_as_csv_only(tmp_path: Path) -> None:
    problem = problem_of(linear(1), 2)
    plan = plan_of(problem, Orders.of([[problem.instance().code(kind, 0, at) for kind in (0, 3) for at in (1, 0)]]))
    (tmp_path / "plan.json").write_text(plan.to_json())
    for name in ("csv", "csv-comms"):
        status, _, stderr = invoke("export", tmp_path / "plan.json", "-f", name, "-o", tmp_path / "out")
        assert status == 2
        assert "run it with PlanSchedule" in stderr
        assert not (tmp_path / "out").exists()
    assert invoke("export", tmp_path / "plan.json", "-f", "chrome", "-o", tmp_path / "out")[0] == 0


def test_a_plan_that_is_not_legal_is_a_no(plan: Plan, tmp_path: Path) -> None:
    broken = json.loads(plan.to_json())
    broken["devices"][0]["start_ms"][0] -= 1
    (tmp_path / "plan.json").write_text(json.dumps(broken))
    assert invoke("export", tmp_path / "plan.json", "-f", "csv")[0] == 1


def test_bad_usage_has_status_2(plan: Plan, tmp_path: Path) -> None:
    assert invoke("export", tmp_path / "plan.json")[0] == 2
    assert invoke("export", tmp_path / "plan.json", "-f", "xml")[0] == 2
    assert invoke("export", tmp_path / "plan.json", "-f", "csv", "-o", tmp_path / "none" / "out")[0] == 2
