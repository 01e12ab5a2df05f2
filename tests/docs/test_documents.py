"""What the documents say is held against the code, so that they cannot go stale unnoticed."""

from __future__ import annotations

import json
import re
from pathlib import Path

import pytest

import runtime_client
from api.app import create_app
from api.settings import Settings
from zbplan.cli import COMMANDS
from zbplan.plan import Plan
from zbplan.problem import METHODS, Problem
from zbplan.profile import Profile
from zbplan.record import Record

ROOT = Path(__file__).parent.parent.parent
DOCUMENTS = sorted([ROOT / "README.md", *ROOT.glob("docs/*.md"), *ROOT.glob("examples/*.md")])


def text_of(name: str) -> str:
    return (ROOT / name).read_text(encoding="utf-8")


def anchors(text: str) -> set[str]:
    headings = re.findall(r"^#+ (.+)$", text, re.MULTILINE)
    return {re.sub(r"[^\w\- ]", "", heading.lower()).replace(" ", "-") for heading in headings}


@pytest.mark.parametrize("document", DOCUMENTS, ids=lambda path: path.name)
def test_every_link_leads_somewhere(document: Path) -> None:
    for target, _, anchor in re.findall(r"\]\(([^)#:\s]*)(#([^)]*))?\)", document.read_text(encoding="utf-8")):
        path = document.parent / target if target else document
        assert path.exists(), target
        assert not anchor or anchor in anchors(path.read_text(encoding="utf-8")), anchor


@pytest.mark.parametrize("document", DOCUMENTS, ids=lambda path: path.name)
def test_every_command_and_problem_is_one(document: Path) -> None:
    text = document.read_text(encoding="utf-8")
    for block in re.findall(r"```console\n(.*?)```", text, re.DOTALL):
        assert set(re.findall(r"^\$ (?:\.venv/bin/)?zbplan (\w+)", block, re.MULTILINE)) <= set(COMMANDS)
    for block in re.findall(r"```json\n(.*?)```", text, re.DOTALL):
        Problem.parse(json.loads(block))


def test_every_page_is_in_the_index() -> None:
    index = text_of("docs/README.md")
    pages = [path.name for path in ROOT.glob("docs/*.md") if path.name != "README.md"]
    assert all(f"]({page})" in index for page in pages)


@pytest.mark.parametrize(
    ("heading", "kind", "untold"),
    [("Profile", Profile, {"format"}), ("Problem", Problem, set()), ("Plan", Plan, {"format"})],
)
def test_every_field_is_described_once(heading: str, kind: type[Record], untold: set[str]) -> None:
    section = re.split(r"^## ", text_of("docs/formats.md"), flags=re.MULTILINE)
    (rows,) = (part for part in section if part.startswith(heading))
    told = [name for cell in re.findall(r"^\| (`.*?) \|", rows, re.MULTILINE) for name in re.findall(r"`(\w+)`", cell)]
    assert sorted(told) == sorted(kind.model_fields.keys() - untold)


def test_every_method_is_named() -> None:
    assert all(f"`{method}`" in text_of("docs/formats.md") for method in METHODS)


def test_every_route_is_listed(tmp_path: Path) -> None:
    app = create_app(Settings.parse({"database_url": f"sqlite:///{tmp_path / 'plans.sqlite3'}"}))
    paths = app.openapi()["paths"]
    known = {f"{method.upper()} {path}" for path, methods in paths.items() for method in methods}
    assert set(re.findall(r"`((?:GET|POST|DELETE) /[^`]*)`", text_of("docs/service.md"))) == known


def test_every_setting_that_is_named_exists() -> None:
    named = {name for path in DOCUMENTS for name in re.findall(r"ZBPLAN_[A-Z_]*[A-Z]", path.read_text())}
    assert named <= {name for name, _, _ in Settings.listing()} | {"ZBPLAN_TOKEN"}


def test_every_error_and_warning_of_the_runtime_client_is_explained() -> None:
    public = {name for name in runtime_client.__all__ if name.endswith(("Error", "Warning"))}
    assert {name for name in public if f"`{name}`" not in text_of("docs/troubleshooting.md")} == set()
