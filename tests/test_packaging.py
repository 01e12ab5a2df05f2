"""What a training job gets when it installs ``zbplan[torch]``: the client, the profiler, and nothing of the service."""

from __future__ import annotations

import json
import os
import shutil
import subprocess
import sys
import venv
import zipfile
from importlib.metadata import requires
from pathlib import Path

import pytest
from packaging.requirements import Requirement

ROOT = Path(__file__).parent.parent
PACKAGES = {"zbplan", "heuristic", "solver", "profiler", "api", "runtime_client"}
NEVER_IN_A_TRAINING_JOB = {
    "numba",
    "ortools",
    "pulp",
    "highspy",
    "fastapi",
    "starlette",
    "uvicorn",
    "sqlalchemy",
    "pebble",
    "psycopg",
    "typer",
    "rich",
    "matplotlib",
}
PLAN_LOCALLY = """
import heuristic, profiler, runtime_client, sys
from zbplan.problem import Problem
from zbplan.validate import check
profile = dict(stages=4, t_f_ms=1.0, t_b_ms=1.0, t_w_ms=0.5, t_comm_ms=0.1, m_b_bytes=2, m_w_bytes=1)
problem = Problem.parse(dict(profile=profile, devices=4, microbatches=8, placement="linear", memory_limit="1x"))
print(check(heuristic.construct(problem)).plan_id)
"""
NOTHING_ELSE = """
assert not {"solver", "api", "numba", "fastapi"} & set(sys.modules)
"""


def run(*command: str | Path) -> str:
    """Run a command outside the checkout, so that only what is installed can be imported."""
    clean = {name: value for name, value in os.environ.items() if name not in ("PYTHONPATH", "VIRTUAL_ENV")}
    done = subprocess.run(command, capture_output=True, text=True, timeout=600, env=clean, cwd="/")
    assert done.returncode == 0, done.stdout + done.stderr
    return done.stdout


@pytest.fixture(scope="module")
def wheel(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("wheel")
    source = shutil.copytree(ROOT, folder / "source", ignore=shutil.ignore_patterns(".*", "build", "*.egg-info"))
    run(sys.executable, "-m", "build", "--wheel", "--outdir", folder, source)
    (built,) = folder.glob("*.whl")
    return built


def test_wheel_holds_the_packages_and_neither_tests_nor_docker(wheel: Path) -> None:
    with zipfile.ZipFile(wheel) as archive:
        names = archive.namelist()
    top = {name.split("/")[0] for name in names if ".dist-info" not in name}
    assert top == PACKAGES
    assert any(name.endswith("licenses/LICENSE") for name in names)
    assert "api/migrations/env.py" in names
    assert any(name.startswith("api/migrations/versions/v0001") for name in names)


def test_training_job_installs_no_solver_and_no_web_framework(wheel: Path, tmp_path: Path) -> None:
    python = tmp_path / "job" / "bin" / "python"
    venv.create(tmp_path / "job", with_pip=True)
    run(python, "-m", "pip", "install", "--quiet", f"{wheel}[torch]", "torch==2.13.0")
    listed = json.loads(run(python, "-m", "pip", "list", "--format", "json"))
    installed = {package["name"].lower() for package in listed}
    assert {"zbplan", "torch", "pydantic", "numpy", "httpx"} <= installed
    assert not installed & NEVER_IN_A_TRAINING_JOB
    assert run(python, "-c", PLAN_LOCALLY + NOTHING_ELSE) == run(sys.executable, "-c", PLAN_LOCALLY)


def test_direct_requirements_of_a_training_job_are_four() -> None:
    found = set()
    for line in requires("zbplan") or []:
        requirement = Requirement(line)
        if requirement.marker is None or requirement.marker.evaluate({"extra": "torch"}):
            found.add(requirement.name)
    assert found == {"pydantic", "numpy", "httpx", "torch"}
