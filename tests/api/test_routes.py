"""What a client sees of the service, over HTTP."""

from __future__ import annotations

import hashlib
import json
from typing import Any

import httpx
import pytest
import zstandard

from api.listing import Summary
from api.resource import PlanResource
from tests.api.servers import Server, problem
from zbplan.comparison import Comparison
from zbplan.formats import pytorch_csv
from zbplan.plan import Plan
from zbplan.problem import Problem
from zbplan.validate import validate


def test_health(server: Server) -> None:
    answer = server.get("/healthz")
    assert (answer.status_code, answer.json()) == (200, {"status": "ok"})


def test_post_that_waits_is_answered_with_a_legal_plan_and_its_bound(server: Server) -> None:
    asked = problem()
    answer = server.post(asked, wait_s=30)
    assert answer.status_code == 200
    assert answer.headers["preference-applied"] == "wait=30"
    resource = PlanResource.parse_json(answer.content)
    assert (resource.status, resource.error) == ("done", None)
    assert resource.submitted_at <= (resource.started_at or "") <= (resource.finished_at or "")
    assert resource.key == Problem.parse(asked).key == answer.headers["content-location"].removeprefix("/v1/plans/")
    plan = resource.plan
    assert plan is not None
    assert validate(plan) == []
    assert 0 < plan.bound.iteration_ms <= plan.metrics.iteration_ms


def test_post_is_answered_at_once_with_a_constructive_plan(server: Server) -> None:
    answer = server.post(problem())
    assert answer.status_code in (200, 202)
    plan = PlanResource.parse_json(answer.content).plan
    assert plan is not None
    assert validate(plan) == []


def test_stored_plan_is_served_byte_for_byte(server: Server) -> None:
    key = server.post(problem(), wait_s=30).json()["key"]
    first, second = server.get(f"/v1/plans/{key}"), server.get(f"/v1/plans/{key}")
    assert first.content == second.content
    plan = Plan.parse(first.json()["plan"])
    assert first.content.endswith(b',"plan":' + plan.to_json().encode() + b"}")


def test_plan_by_id_is_immutable(server: Server) -> None:
    plan = server.post(problem(), wait_s=30).json()["plan"]
    answer = server.get(f"/v1/plans/by-id/{plan['plan_id']}")
    assert answer.status_code == 200
    assert "immutable" in answer.headers["cache-control"]
    assert answer.json()["devices"] == plan["devices"]
    again = server.get(f"/v1/plans/by-id/{plan['plan_id']}", **{"If-None-Match": answer.headers["etag"]})
    assert (again.status_code, again.content) == (304, b"")


def test_etag_is_the_digest_of_the_representation(server: Server) -> None:
    key = server.post(problem(), wait_s=30).json()["key"]
    answer = server.get(f"/v1/plans/{key}")
    assert answer.headers["etag"] == f'"{hashlib.sha256(answer.content).hexdigest()}"'


@pytest.mark.parametrize("form", ["{}", "W/{}", '"other", {}', "*"])
def test_what_the_client_has_is_not_sent_again(server: Server, form: str) -> None:
    key = server.post(problem(), wait_s=30).json()["key"]
    etag = server.get(f"/v1/plans/{key}").headers["etag"]
    answer = server.get(f"/v1/plans/{key}", **{"If-None-Match": form.format(etag)})
    assert (answer.status_code, answer.content, answer.headers["etag"]) == (304, b"", etag)


def test_head_is_answered_as_a_get_without_its_body(server: Server) -> None:
    path = f"/v1/plans/{server.post(problem(), wait_s=30).json()['key']}"
    whole = server.get(path)
    with server.client() as client:
        head = client.head(path)
        assert (head.status_code, head.content) == (200, b"")
        assert head.headers["content-length"] == str(len(whole.content))
        assert client.head(path, headers={"If-None-Match": whole.headers["etag"]}).status_code == 304


def test_head_is_answered_wherever_get_is(server: Server) -> None:
    plan = server.post(problem(method="1f1b"), wait_s=30).json()
    profile = server.post({**problem()["profile"], "name": "headed"}, path="/v1/profiles").json()
    sweep = server.post({"problem": problem()}, path="/v1/sweeps", wait_s=30)
    known = {"{plan_id}": plan["plan"]["plan_id"], "{digest}": profile["digest"], "{name}": "headed"}
    described = server.get("/openapi.json").json()["paths"]
    paths = [path for path, routes in described.items() if "get" in routes and path != "/v1/sweeps/{key}"]
    for found, name in known.items():
        paths = [path.replace(found, name) for path in paths]
    paths = [path.replace("{key}", plan["key"]) for path in paths] + [sweep.headers["content-location"]]
    with server.client() as client:
        for path in (*paths, "/openapi.json", "/v1/plans/nothing"):
            head, whole = client.head(path), client.get(path)
            assert (head.status_code, head.content) == (whole.status_code, b""), path
            for name in ("content-type", "etag", "cache-control", "content-location"):
                assert head.headers.get(name) == whole.headers.get(name), path
            if path not in ("/v1/plans", "/metrics"):  # what these show may be more already
                assert head.headers.get("content-length") == whole.headers.get("content-length"), path


def test_head_of_events_waits_for_none(server: Server) -> None:
    key = server.begin(problem("held"))
    with server.client() as client:
        head = client.head(f"/v1/plans/{key}/events")
        assert (head.status_code, head.headers["content-type"]) == (200, "text/event-stream; charset=utf-8")
        assert client.get("/healthz").status_code == 200  # on the same connection
    server.let(key, "release")


def test_plan_is_compressed_for_who_takes_it(server: Server) -> None:
    path = f"/v1/plans/{server.post(problem(microbatches=30), wait_s=30).json()['key']}"
    plain = server.get(path)
    compressed = server.get(path, **{"Accept-Encoding": "br, gzip"})
    assert (plain.headers.get("content-encoding"), compressed.headers["content-encoding"]) == (None, "gzip")
    assert int(compressed.headers["content-length"]) < len(plain.content) / 2
    assert compressed.content == plain.content
    assert compressed.headers["etag"] != plain.headers["etag"]
    assert compressed.headers["vary"] == plain.headers["vary"] == "Accept-Encoding"
    for held in (plain, compressed):
        for accepted in ("identity", "gzip"):
            asked = {"If-None-Match": held.headers["etag"], "Accept-Encoding": accepted}
            assert server.get(path, **asked).status_code == 304


def test_plan_comes_by_zstd_to_who_takes_it(server: Server) -> None:
    path = f"/v1/plans/{server.post(problem(microbatches=30), wait_s=30).json()['key']}"
    plain, headers = server.get(path), {"Accept-Encoding": "gzip, zstd"}
    with server.client() as client, client.stream("GET", path, headers=headers) as answer:
        assert answer.headers["content-encoding"] == "zstd"
        assert zstandard.ZstdDecompressor().decompress(b"".join(answer.iter_raw())) == plain.content
    tags = {
        plain.headers["etag"],
        answer.headers["etag"],
        server.get(path, **{"Accept-Encoding": "gzip"}).headers["etag"],
    }
    assert len(tags) == 3
    for tag in tags:
        unchanged = server.get(path, **headers, **{"If-None-Match": tag})
        assert (unchanged.status_code, unchanged.headers["etag"]) == (304, answer.headers["etag"])


def test_another_representation_is_sent(server: Server) -> None:
    key = server.post(problem(), wait_s=30).json()["key"]
    assert server.get(f"/v1/plans/{key}", **{"If-None-Match": '"other"'}).status_code == 200


def test_name_environment_and_spacing_do_not_change_the_answer(server: Server) -> None:
    asked = problem()
    named = {**asked, "profile": {**asked["profile"], "name": "other", "environment": {"device": "A100"}}}
    first = server.post(asked, wait_s=30)
    with server.client(headers={"Content-Type": "application/json"}) as client:
        second = client.post("/v1/plans", content=json.dumps(named, indent=3), headers={"Prefer": "wait=30"})
    assert first.content == second.content


@pytest.mark.parametrize(
    "change",
    [{"memory_limit": "2x"}, {"optimizer": "post_validated"}, {"method": "zb_h1"}, {"microbatches": 9}],
)
def test_what_changes_the_plan_changes_the_key(server: Server, change: dict[str, Any]) -> None:
    asked = problem()
    assert server.post(asked).json()["key"] != server.post({**asked, **change}).json()["key"]


@pytest.mark.parametrize(("devices", "microbatches"), [(1, 4), (4, 1), (4, 2), (8, 1)])
def test_few_devices_and_few_microbatches_have_plans(server: Server, devices: int, microbatches: int) -> None:
    asked = problem(devices=devices, microbatches=microbatches, memory_limit=None)
    asked["profile"]["stages"] = devices
    answer = server.post(asked, wait_s=30)
    assert answer.status_code == 200
    assert validate(Plan.parse(answer.json()["plan"])) == []


def test_infeasible_problem_is_told_the_smallest_limits(server: Server) -> None:
    asked = problem(memory_limit=[2, 1, 2, 1.9])
    answer = server.post(asked)
    assert_problem_details(answer, 422, "infeasible")
    assert answer.json()["smallest_limit_bytes"] == [2, 2, 2, 2]
    assert [item["found"] for item in answer.json()["errors"]] == ["1 bytes on device 1", "1.9 bytes on device 3"]
    assert server.get(f"/v1/plans/{Problem.parse(asked).key}").status_code == 404
    assert server.post({**asked, "memory_limit": answer.json()["smallest_limit_bytes"]}).status_code in (200, 202)


def test_method_without_a_plan_names_those_that_have_one(server: Server) -> None:
    asked = problem(method="gpipe", memory_limit=2)
    answer = server.post(asked)
    assert_problem_details(answer, 422, "method")
    assert answer.json()["errors"][0]["path"] == "$.method"
    instead = answer.json()["methods"]
    assert server.post({**asked, "method": instead[0]}).status_code in (200, 202)
    assert server.get(f"/v1/plans/{Problem.parse(asked).key}").status_code == 404


@pytest.mark.parametrize("path", ["/v1/plans/nothing", "/v1/plans/" + "0" * 64, "/v1/plans/by-id/" + "0" * 64])
def test_unknown_plan(server: Server, path: str) -> None:
    assert_problem_details(server.get(path), 404, "not_found")


def test_unknown_route(server: Server) -> None:
    assert_problem_details(server.get("/v1/nothing"), 404, "http")


@pytest.mark.parametrize(
    ("path", "allowed"),
    [
        ("/v1/plans", "GET, HEAD, POST"),
        ("/v1/plans/nothing", "DELETE, GET, HEAD"),
        ("/v1/plans/nothing.csv", "DELETE, GET, HEAD"),  # a key may be anything until it is looked for
        ("/v1/sweeps/nothing", "DELETE, GET, HEAD"),
        ("/v1/compare", "POST"),
        ("/healthz", "GET, HEAD"),
        ("/openapi.json", "GET, HEAD"),
    ],
)
def test_method_that_a_path_does_not_have_is_told_all_that_it_has(server: Server, path: str, allowed: str) -> None:
    with server.client() as client:
        answer = client.put(path)
    assert_problem_details(answer, 405, "http")
    assert answer.headers["allow"] == allowed


@pytest.mark.parametrize("headers", [{}, {"Content-Type": "text/plain"}, {"Content-Type": "application/json-seq"}])
def test_body_must_be_declared_as_json(server: Server, headers: dict[str, str]) -> None:
    with server.client() as client:
        answer = client.post("/v1/plans", content=json.dumps(problem()), headers=headers)
    assert_problem_details(answer, 415, "unsupported_media_type")


def test_content_type_may_have_parameters(server: Server) -> None:
    headers = {"Content-Type": "Application/JSON; charset=utf-8"}
    with server.client(headers=headers) as client:
        assert client.post("/v1/plans", content=json.dumps(problem())).status_code in (200, 202)


@pytest.mark.parametrize("chunked", [False, True])
def test_body_too_large(server: Server, chunked: bool) -> None:
    body = b" " * 200_001
    with server.client(headers={"Content-Type": "application/json"}) as client:
        answer = client.post("/v1/plans", content=iter([body[:1000], body[1000:]]) if chunked else body)
    assert_problem_details(answer, 413, "too_large")


def test_openapi_describes_every_answer(server: Server) -> None:
    document = server.get("/openapi.json").json()
    references = {value for name, value in walk(document) if name == "$ref"}
    known = {f"#/components/schemas/{name}" for name in document["components"]["schemas"]}
    assert references <= known
    assert {"Problem", "PlanResource", "Plan", "ErrorDocument"} <= set(document["components"]["schemas"])
    for routes in document["paths"].values():
        for route in routes.values():
            for status, answer in route["responses"].items():
                assert int(status) < 400 or set(answer["content"]) == {"application/problem+json"}
    assert not {"HTTPValidationError", "ValidationError"} & set(document["components"]["schemas"])


def test_openapi_examples_can_be_sent_as_they_are(server: Server) -> None:
    document = server.get("/openapi.json").json()
    sent = [path for path, routes in document["paths"].items() if "post" in routes]
    assert len(sent) >= 4
    for path in sent:
        body = document["paths"][path]["post"]["requestBody"]["content"]["application/json"]
        assert server.post(body["example"], wait_s=30, path=path).status_code in (200, 201), path


def test_list_has_every_problem_once_the_last_submitted_first(server: Server) -> None:
    keys = [server.post(problem(), wait_s=30).json()["key"] for _ in range(3)]
    listed, cursor = [], None
    while True:
        page = server.get("/v1/plans?limit=2" + (f"&cursor={cursor}" if cursor else "")).json()
        listed += page["plans"]
        cursor = page["next"]
        if cursor is None:
            break
    found = [item["key"] for item in listed]
    assert len(found) == len(set(found))
    assert [key for key in found if key in keys] == keys[::-1]
    newest = Summary.parse(listed[found.index(keys[-1])])
    plan = server.get(f"/v1/plans/{keys[-1]}").json()["plan"]
    assert (newest.plan_id, newest.iteration_ms) == (plan["plan_id"], plan["metrics"]["iteration_ms"])
    assert newest.bound_ms == plan["bound"]["iteration_ms"]


def test_list_of_one_state(server: Server) -> None:
    key = server.post(problem(), wait_s=30).json()["key"]
    done = server.get("/v1/plans?status=done&limit=1000").json()["plans"]
    assert key in [item["key"] for item in done]
    assert {item["status"] for item in done} == {"done"}
    assert key not in [item["key"] for item in server.get("/v1/plans?status=failed").json()["plans"]]


@pytest.mark.parametrize(
    ("query", "path"),
    [
        ("limit=0", "query.limit"),
        ("limit=many", "query.limit"),
        ("status=new", "query.status"),
        ("cursor=x", "query.cursor"),
    ],
)
def test_parameter_that_is_wrong_is_told(server: Server, query: str, path: str) -> None:
    answer = server.get(f"/v1/plans?{query}")
    assert_problem_details(answer, 422, "invalid_input")
    assert [item["path"] for item in answer.json()["errors"]] == [path]


def test_legal_plan_is_judged_legal(server: Server) -> None:
    plan = server.post(problem(), wait_s=30).json()["plan"]
    assert server.post(plan, path="/v1/validate").json() == {"legal": True, "violations": []}
    plan["devices"][1]["kind"][0] = "R"
    assert server.post(plan, path="/v1/validate").json() == {
        "legal": False,
        "violations": [
            {"code": "unknown_kind", "path": "$.devices[1].kind[0]", "found": "'R'", "needed": "one of F, B, W, BW"}
        ],
    }


def test_plan_of_a_problem_past_the_limits_is_not_judged(server: Server) -> None:
    plan = server.post(problem(), wait_s=30).json()["plan"]
    plan["problem"]["microbatches"] = 60_000
    answer = server.post(plan, path="/v1/validate")
    assert_problem_details(answer, 422, "invalid_input")
    assert [item["path"] for item in answer.json()["errors"]] == ["$.problem.microbatches"]


def test_plan_in_the_formats_of_others(server: Server) -> None:
    asked = problem(method="1f1b")
    resource = server.post(asked, wait_s=30).json()
    path, plan = f"/v1/plans/{resource['key']}", Plan.parse(resource["plan"])
    csv = server.get(f"{path}.csv")
    assert csv.headers["content-type"].startswith("text/csv")
    assert csv.text == pytorch_csv.write(pytorch_csv.from_plan(plan))
    assert pytorch_csv.to_plan(pytorch_csv.read(csv.text), plan.asked).plan_id == plan.plan_id
    trace = server.get(f"{path}.trace.json")
    assert trace.json()["otherData"]["plan_id"] == plan.plan_id
    for answer in (csv, trace):
        held = {"If-None-Match": answer.headers["etag"]}
        assert server.get(str(answer.url.path), **held).status_code == 304
        assert_problem_details(server.get(str(answer.url.path).replace(plan.key, "x")), 404, "not_found")


def test_methods_are_compared_and_nothing_is_stored(server: Server) -> None:
    asked = problem(method="gpipe")
    answer = server.post(asked, path="/v1/compare")
    assert answer.status_code == 200
    comparison = Comparison.parse_json(answer.content)
    assert {"gpipe", "1f1b", "zb_h1", "auto"} <= {row.method for row in comparison.rows}
    assert comparison.rows[0].best
    assert comparison.bound.iteration_ms > 0
    assert server.get(f"/v1/plans/{comparison.key}").status_code == 404


@pytest.mark.parametrize("path", ["/v1/validate", "/v1/profiles", "/v1/compare"])
@pytest.mark.parametrize("body", [b"{", b"[]", b"{}", b'{"format": NaN}', b"[" * 100_000, b"\xff"])
def test_bad_bodies_are_refused_everywhere(server: Server, path: str, body: bytes) -> None:
    with server.client() as client:
        answer = client.post(path, content=body, headers={"Content-Type": "application/json"})
    assert_problem_details(answer, 422, "invalid_input")
    assert answer.json()["errors"]


def walk(value: Any, name: str = "") -> list[tuple[str, Any]]:
    inner = value.items() if isinstance(value, dict) else enumerate(value) if isinstance(value, list) else ()
    return [(name, value)] * isinstance(value, str) + [pair for key, item in inner for pair in walk(item, str(key))]


def assert_problem_details(answer: httpx.Response, status: int, name: str) -> None:
    assert answer.status_code == status, answer.text
    assert answer.headers["content-type"] == "application/problem+json"
    document = answer.json()
    assert (document["status"], document["type"]) == (status, f"urn:zbplan:error:{name}")
    assert all(set(item) == {"path", "found", "needed"} for item in document["errors"])
    assert document["title"]
    assert document["detail"]
