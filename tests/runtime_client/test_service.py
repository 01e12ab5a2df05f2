from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path

import pytest

from runtime_client import service
from runtime_client.errors import FetchError
from runtime_client.service import PlanSoFarWarning, download
from tests.api.servers import problem, running
from tests.runtime_client.plans import random_plan, zb_h1
from tests.runtime_client.serving import Answer, answer, dripping, serving
from zbplan.errors import InvalidInputError
from zbplan.plan import Plan
from zbplan.problem import Problem
from zbplan.validate import check


@pytest.fixture(scope="module")
def plan() -> Plan:
    return zb_h1(2, 4)


def test_a_problem_is_posted_and_its_plan_returned(plan: Plan) -> None:
    with serving(answer("done", plan)) as service:
        assert download(service.url, plan.asked, timeout_s=20) == plan
    ((method, path, body),) = service.asked
    assert (method, path) == ("POST", "/v1/plans")
    assert json.loads(body)["microbatches"] == 4


def test_a_problem_may_be_plain_json(plan: Plan) -> None:
    with serving(answer("done", plan)) as service:
        assert download(service.url + "/", plan.problem, timeout_s=20) == plan


def test_a_key_is_asked_for_until_its_plan_is_done(plan: Plan) -> None:
    answers = [answer("queued"), answer("solving", random_plan([[0], [1]], 4, 0)), answer("done", plan)]
    with serving(*answers) as service:
        assert download(service.url, plan.key, timeout_s=20) == plan
    assert [asked[:2] for asked in service.asked] == [("GET", f"/v1/plans/{plan.key}")] * 3


@pytest.mark.parametrize("status", ["solving", "cancelled", "failed"])
def test_the_plan_so_far_of_a_solve_that_is_not_done_is_used_and_said_so(plan: Plan, status: str) -> None:
    with (
        serving(answer(status, plan)) as service,
        pytest.warns(PlanSoFarWarning, match=f"the solve has status '{status}': using its best plan so far, heuristic"),
    ):
        assert download(service.url, plan.key, timeout_s=0.3) == plan


def test_the_real_service_answers_this_client(tmp_path: Path) -> None:
    with running(tmp_path) as server:
        asked = Problem.parse(problem(time_limit_s=2))
        plan = download(server.url, asked, timeout_s=60)
        assert check(plan).key == asked.key
        assert download(server.url, plan.key, timeout_s=60) == plan
        with pytest.raises(FetchError, match="found status 422, No plan fits into memory: memory limit too small"):
            download(server.url, problem(memory_limit=1), timeout_s=60)
        with pytest.raises(FetchError, match=f"GET {server.url}/v1/plans/0+: found status 404"):
            download(server.url, "0" * 64, timeout_s=60)


Failure = tuple[Callable[[Plan], Answer], str]
FAILURES: dict[str, Failure] = {
    "time is up and there is no plan": (
        lambda plan: answer("queued"),
        "found no plan but status 'queued' within 0.3 s",
    ),
    "the solve failed": (
        lambda plan: answer("failed", error={"title": "The planner failed", "detail": "worker died"}),
        r"found no plan but status 'failed' \(The planner failed: worker died\)",
    ),
    "the problem is refused": (
        lambda plan: (422, json.dumps({"title": "Infeasible", "status": 422, "detail": "device 0 needs 12 bytes"})),
        "POST http://127.*/v1/plans: found status 422, Infeasible: device 0 needs 12 bytes",
    ),
    "the answer is from something else": (
        lambda plan: (404, "<html>Not here</html>"),
        "found status 404, '<html>Not here</html>'",
    ),
    "the answer is cut short": (lambda plan: (200, '{"key": "'), 'found status 200, \'{"key": "\''),
    "the plan is for another problem": (
        lambda plan: answer("done", zb_h1(2, 5)),
        "found the plan of key [0-9a-f]{64}; needed that of",
    ),
    "the plan is of a later format": (
        lambda plan: answer("done", plan.model_copy(update={"format": "zbplan.plan/2"})),
        r"found a plan that cannot be read: \$.format",
    ),
}


@pytest.mark.parametrize("failure", FAILURES)
def test_what_the_service_answers_instead_of_a_plan_is_named(plan: Plan, failure: str) -> None:
    respond, message = FAILURES[failure]
    with serving(respond(plan)) as service, pytest.raises(FetchError, match=message):
        download(service.url, plan.asked, timeout_s=0.3)


def test_a_service_that_is_not_there_is_named(plan: Plan) -> None:
    with serving(answer("done", plan)) as service:
        url = service.url
    with pytest.raises(
        FetchError,
        match=f"GET {url}/v1/plans/.*: found ConnectError .*; needed a service that answers .asked 4 times",
    ):
        download(url, plan.key, timeout_s=20)


def test_a_service_that_is_busy_or_breaks_is_asked_again(plan: Plan) -> None:
    with serving((503, "{}"), (500, "broken"), answer("done", plan)) as service:
        assert download(service.url, plan.asked, timeout_s=20) == plan
    assert [method for method, _, _ in service.asked] == ["POST"] * 3


def test_a_request_is_not_made_again_when_time_is_up_or_it_cannot_help(plan: Plan) -> None:
    with serving((503, "busy")) as service, pytest.raises(FetchError, match="found status 503, 'busy'"):
        download(service.url, plan.key, timeout_s=0.1)
    with serving((401, "no")) as refusing, pytest.raises(FetchError, match="found status 401, 'no'"):
        download(refusing.url, plan.key, timeout_s=20)
    assert len(service.asked) == len(refusing.asked) == 1


def test_a_token_is_sent_with_every_request(plan: Plan) -> None:
    with serving(answer("queued"), answer("done", plan)) as service:
        download(service.url, plan.asked, timeout_s=20, token="secret")
    assert service.tokens == ["Bearer secret"] * 2


def test_a_proxy_of_the_environment_is_named_and_can_be_bypassed(plan: Plan, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("NO_PROXY", raising=False)
    monkeypatch.delenv("no_proxy", raising=False)
    monkeypatch.setenv("http_proxy", "http://user:password@127.0.0.1:9")
    with serving(answer("done", plan)) as service:
        with pytest.raises(FetchError, match=r"through the proxy 127\.0\.0\.1:9 of the environment") as caught:
            download(service.url, plan.key, timeout_s=0.1)
        assert "password" not in str(caught.value)
        assert "use_proxy=False or NO_PROXY=127.0.0.1" in str(caught.value)
        assert download(service.url, plan.key, timeout_s=20, use_proxy=False) == plan


@pytest.mark.parametrize("url", ["planner:8642", "not a url", "http://", "ftp://planner"])
def test_a_url_that_is_none_is_named(plan: Plan, url: str) -> None:
    with pytest.raises(FetchError, match="needed"):
        download(url, plan.key, timeout_s=1)


@pytest.mark.parametrize("key", ["", "abc", "../healthz", "A" * 64])
def test_a_key_that_is_none_is_refused_before_anything_is_sent(plan: Plan, key: str) -> None:
    with serving(answer("done", plan)) as service, pytest.raises(FetchError, match="needed 64 hexadecimal digits"):
        download(service.url, key, timeout_s=1)
    assert service.asked == []


def test_a_problem_that_is_none_is_refused_before_anything_is_sent(plan: Plan) -> None:
    with serving(answer("done", plan)) as service, pytest.raises(InvalidInputError, match=r"\$.devices: found 0"):
        download(service.url, plan.problem | {"devices": 0}, timeout_s=1)
    assert service.asked == []


def test_a_server_that_sends_a_byte_now_and_then_does_not_hold_the_job(
    plan: Plan, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(service, "GRACE_S", 0.5)
    with dripping() as url, pytest.raises(FetchError, match=r"no whole answer within 0\.5 s and 0\.5 s of grace"):
        download(url, plan.key, timeout_s=0.5)


@pytest.mark.parametrize("depth", [400, 900, 100_000])
def test_an_answer_that_is_nested_without_end_is_no_plan(plan: Plan, depth: int) -> None:
    nested = '{"status": "done", "plan": ' + '{"profile": ' * depth + "1" + "}" * (depth + 1)
    with serving((200, nested)) as here, pytest.raises(FetchError, match="found"):
        download(here.url, plan.key, timeout_s=5)


@pytest.mark.parametrize("token", ["schlüssel", "two\nlines"])
def test_a_token_that_no_header_can_carry_is_refused_before_anything_is_sent(plan: Plan, token: str) -> None:
    with serving(answer("done", plan)) as here:
        with pytest.raises(FetchError, match="found a token with characters that no header can carry"):
            download(here.url, plan.key, timeout_s=5, token=token)
        assert here.asked == []
