from __future__ import annotations

from pathlib import Path

import pytest

from heuristic import construct
from runtime_client.errors import FetchError
from runtime_client.obtain import PlanCacheWarning, PlanFallbackWarning, obtain
from runtime_client.plan_cache import PlanCache
from tests.runtime_client.plans import zb_h1
from tests.runtime_client.serving import answer, serving
from zbplan.plan import Plan

NOBODY = "http://127.0.0.1:9"


@pytest.fixture(scope="module")
def plan() -> Plan:
    return zb_h1(2, 4)


def test_the_plan_of_the_service_is_kept_and_used_when_the_service_is_gone(plan: Plan, tmp_path: Path) -> None:
    with serving(answer("done", plan)) as service:
        assert obtain(service.url, plan.asked, timeout_s=20, cache=tmp_path / "plans") == plan
    for asked in (plan.asked, plan.key):
        with pytest.warns(
            PlanFallbackWarning, match=r"found ConnectError.*; using the copy on disk, .*\.plan, by heuristic"
        ):
            assert obtain(service.url, asked, timeout_s=0.2, cache=tmp_path / "plans") == plan


def test_without_a_copy_a_plan_is_built_here(plan: Plan, tmp_path: Path) -> None:
    with pytest.warns(PlanFallbackWarning, match=r"using a plan built here by \w+, [\d.]+ ms, without a bound"):
        found = obtain(NOBODY, plan.asked, timeout_s=0.2, cache=tmp_path / "plans")
    assert found.plan_id == construct(plan.asked).plan_id


def test_a_service_that_breaks_is_one_that_is_gone(plan: Plan, tmp_path: Path) -> None:
    with serving((500, "broken")) as service, pytest.warns(PlanFallbackWarning, match="found status 500, 'broken'"):
        assert obtain(service.url, plan.asked, timeout_s=0.2, cache=tmp_path / "plans").key == plan.key


def test_a_key_alone_is_not_enough_to_build_a_plan(plan: Plan, tmp_path: Path) -> None:
    with pytest.raises(FetchError, match="a key alone is not enough to build a plan here: pass the problem instead"):
        obtain(NOBODY, plan.key, timeout_s=0.2, cache=tmp_path / "plans")


def test_a_problem_that_has_no_plan_has_none_here_either(plan: Plan, tmp_path: Path) -> None:
    asked = plan.problem | {"memory_limit": 1}
    with pytest.raises(FetchError, match="no plan built here: memory limit too small"):
        obtain(NOBODY, asked, timeout_s=0.2, cache=tmp_path / "plans")


def test_a_copy_that_is_damaged_is_not_used(plan: Plan, tmp_path: Path) -> None:
    cache = PlanCache(tmp_path / "plans")
    cache.keep(plan)
    cache.path(plan.key).write_bytes(b"junk")
    with pytest.warns(PlanFallbackWarning, match="using a plan built here"):
        obtain(NOBODY, plan.asked, timeout_s=0.2, cache=tmp_path / "plans")


def test_a_disk_that_takes_no_copy_does_not_keep_a_job_from_starting(plan: Plan, tmp_path: Path) -> None:
    (tmp_path / "file").touch()
    with (
        serving(answer("done", plan)) as service,
        pytest.warns(PlanCacheWarning, match="the plan is not kept for the next start: .*Not a directory"),
    ):
        assert obtain(service.url, plan.asked, timeout_s=20, cache=tmp_path / "file" / "plans") == plan
