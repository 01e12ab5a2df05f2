from __future__ import annotations

import os
import stat
from pathlib import Path

import pytest

from runtime_client.plan_cache import CacheError, PlanCache, default_folder
from tests.runtime_client.plans import random_plan, zb_h1


def test_a_plan_that_was_kept_comes_back(tmp_path: Path) -> None:
    plan, cache = zb_h1(2, 4), PlanCache(tmp_path / "a" / "plans")
    cache.keep(plan)
    assert cache.get(plan.key) == plan


def test_only_its_user_can_enter_the_folder(tmp_path: Path) -> None:
    PlanCache(tmp_path / "plans").keep(zb_h1(2, 4))
    assert stat.S_IMODE((tmp_path / "plans").stat().st_mode) == 0o700


def test_a_later_plan_of_a_key_replaces_the_earlier_one_and_leaves_nothing_else(tmp_path: Path) -> None:
    cache = PlanCache(tmp_path / "plans")
    first, second = (random_plan([[0], [1]], 4, seed) for seed in range(2))
    assert first.key == second.key
    cache.keep(first)
    cache.keep(second)
    assert cache.get(first.key) == second
    assert [path.name for path in (tmp_path / "plans").iterdir()] == [f"{first.key}.plan"]


def test_what_is_not_there_is_named(tmp_path: Path) -> None:
    with pytest.raises(CacheError, match=r"plans/abc.plan: No such file"):
        PlanCache(tmp_path / "plans").get("abc")


@pytest.mark.parametrize(
    "damage",
    [lambda text: text[:-1], lambda text: text.replace(b'"F"', b'"W"', 1), lambda text: b"", lambda text: b"x"],
)
def test_a_damaged_file_is_not_used(tmp_path: Path, damage: object) -> None:
    plan, cache = zb_h1(2, 4), PlanCache(tmp_path / "plans")
    cache.keep(plan)
    cache.path(plan.key).write_bytes(damage(cache.path(plan.key).read_bytes()))
    with pytest.raises(CacheError, match="whose digest is not that of its content"):
        cache.get(plan.key)


def test_the_plan_of_another_key_is_not_used(tmp_path: Path) -> None:
    plan, cache = zb_h1(2, 4), PlanCache(tmp_path / "plans")
    cache.keep(plan)
    cache.path(plan.key).rename(cache.path("0" * 64))
    with pytest.raises(CacheError, match=f"found the plan of key {plan.key}"):
        cache.get("0" * 64)


def test_a_folder_that_others_may_enter_is_neither_read_nor_written(tmp_path: Path) -> None:
    plan, cache = zb_h1(2, 4), PlanCache(tmp_path / "plans")
    cache.keep(plan)
    (tmp_path / "plans").chmod(0o755)
    for use in (lambda: cache.get(plan.key), lambda: cache.keep(plan)):
        with pytest.raises(CacheError, match=f"found mode 0755 and owner {os.geteuid()}; needed a folder of mode 0700"):
            use()


def test_a_folder_that_cannot_be_made_is_named(tmp_path: Path) -> None:
    (tmp_path / "file").touch()
    with pytest.raises(CacheError, match="file/plans: Not a directory"):
        PlanCache(tmp_path / "file" / "plans").keep(zb_h1(2, 4))


def test_the_default_folder_is_the_users_own(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path))
    assert default_folder() == tmp_path / "zbplan" / "plans"
    monkeypatch.delenv("XDG_CACHE_HOME")
    assert default_folder() == Path.home() / ".cache" / "zbplan" / "plans"
