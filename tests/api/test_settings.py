"""Settings: given, or read from the environment, and refused by name."""

from __future__ import annotations

import pickle

import pytest
from pydantic import ValidationError

from api.settings import Settings
from zbplan.errors import InvalidInputError


def test_what_is_not_given_is_read_from_the_environment(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("ZBPLAN_PORT", "9000")
    monkeypatch.setenv("ZBPLAN_MAX_OPS", "12")
    settings = Settings.parse({"port": 1})
    assert (settings.port, settings.max_ops, settings.host) == (1, 12, "127.0.0.1")


def test_solver_processes_share_the_memory_unless_told_otherwise() -> None:
    one, three = (Settings.parse({"solver_workers": workers}).memory_per_solver_bytes for workers in (1, 3))
    assert one // 3 == three
    assert Settings.parse({"solver_memory_bytes": 1 << 30}).memory_per_solver_bytes == 1 << 30


def test_solver_processes_share_the_cores(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("api.settings.cores", lambda: 8)
    assert Settings.parse({}).threads_per_solver == 2
    assert [Settings.parse({"solver_workers": workers}).threads_per_solver for workers in (1, 3, 16)] == [8, 2, 1]


@pytest.mark.parametrize(
    ("given", "variables", "path"),
    [
        ({"port": 65536}, {}, "$.port"),
        ({"prot": 1}, {}, "$.prot"),
        ({"desk_limit_s": "nan"}, {}, "$.desk_limit_s"),
        ({}, {"ZBPLAN_PORT": "many"}, "ZBPLAN_PORT"),
        ({}, {"ZBPLAN_MAX_OPS": ""}, "ZBPLAN_MAX_OPS"),
        ({"port": 80}, {"ZBPLAN_GRACE_S": "-1"}, "ZBPLAN_GRACE_S"),
    ],
)
def test_wrong_settings_are_named(
    monkeypatch: pytest.MonkeyPatch, given: dict[str, object], variables: dict[str, str], path: str
) -> None:
    for name, value in variables.items():
        monkeypatch.setenv(name, value)
    with pytest.raises(InvalidInputError) as refused:
        Settings.parse(given)
    assert [finding.path for finding in refused.value.findings] == [path]


def test_workers_get_the_same_settings_whatever_their_environment_says(monkeypatch: pytest.MonkeyPatch) -> None:
    sent = pickle.dumps(Settings.parse({"port": 1}))
    monkeypatch.setenv("ZBPLAN_HOST", "0.0.0.0")
    assert pickle.loads(sent).host == "127.0.0.1"


@pytest.mark.parametrize("hosts", ["planner, 10.0.0.5 ,", ["planner", "10.0.0.5"]])
def test_hosts_are_apart_by_commas(hosts: object) -> None:
    assert Settings.parse({"allowed_hosts": hosts}).allowed_hosts == ("planner", "10.0.0.5")


def test_settings_stay_as_they_are() -> None:
    with pytest.raises(ValidationError, match="frozen"):
        Settings.parse({}).port = 1


def test_every_setting_is_listed_with_what_it_is_for() -> None:
    listed = {name: (default, text) for name, default, text in Settings.listing()}
    assert listed["ZBPLAN_PORT"] == ("8642", "Port to listen on; 0 takes a free one.")
    assert all(text for _, text in listed.values())
