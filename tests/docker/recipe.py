"""Reads what is in docker/, so that tests can do what it says without an engine."""

from __future__ import annotations

import json
import re
import shutil
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import yaml

ROOT = Path(__file__).parents[2]
DOCKER = ROOT / "docker"


@dataclass(frozen=True)
class Instruction:
    """A line of a Dockerfile; stages count from 0."""

    stage: int
    name: str
    rest: str


def instructions() -> list[Instruction]:
    """Return what the Dockerfile says."""
    text = re.sub(r"\\\n", " ", (DOCKER / "Dockerfile").read_text())
    lines = [line.split(maxsplit=1) for line in text.splitlines() if line and not line.startswith("#")]
    found: list[Instruction] = []
    for name, rest in lines:
        stage = sum(instruction.name == "FROM" for instruction in found) - (name != "FROM")
        found.append(Instruction(stage, name, rest))
    return found


def said(name: str, stage: int = 1) -> list[str]:
    """Return what a stage says after each of its instructions of a name."""
    return [item.rest for item in instructions() if (item.name, item.stage) == (name, stage)]


def command(rest: str) -> list[str]:
    """Return a command in exec form."""
    found: list[str] = json.loads(rest[rest.index("[") :])
    return found


def variables() -> dict[str, str]:
    """Return the environment that the image sets."""
    return dict(pair.split("=", 1) for rest in said("ENV") for pair in rest.split())


def copy_context(target: Path) -> None:
    """Copy what the engine would send as context."""
    listed = (DOCKER / "Dockerfile.dockerignore").read_text().splitlines()
    assert listed[0] == "*"
    for name in (line[1:] for line in listed if line.startswith("!")):
        source = ROOT / name
        if source.is_dir():
            shutil.copytree(source, target / name, ignore=shutil.ignore_patterns("__pycache__"))
        else:
            (target / name).parent.mkdir(parents=True, exist_ok=True)
            shutil.copy(source, target / name)


def compose(**environment: str) -> dict[str, Any]:
    """Return the compose file with its variables filled in."""

    def fill(match: re.Match[str]) -> str:
        name, _, default = match[1].partition(":")
        return environment.get(name, default[1:] if default.startswith("-") else "")

    text = re.sub(r"\$\{([^}]+)\}", fill, (DOCKER / "compose.yaml").read_text())
    found: dict[str, Any] = yaml.safe_load(text)
    return found


def documented_commands() -> list[str]:
    """Return the command lines that the head of the compose file shows."""
    head = (DOCKER / "compose.yaml").read_text().split("name:")[0]
    return [line.removeprefix("#").strip() for line in head.splitlines() if line.startswith("#   ")]
