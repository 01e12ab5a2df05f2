"""Profiles that are posted once and referred to."""

from __future__ import annotations

from typing import Any
from urllib.parse import quote

import httpx
import pytest

from tests.api.servers import Server, problem


def profile(**changes: Any) -> dict[str, Any]:
    return {**problem()["profile"], **changes}


def post(server: Server, profile: dict[str, Any]) -> httpx.Response:
    return server.post(profile, path="/v1/profiles")


def asked(reference: Any) -> dict[str, Any]:
    return {**problem(), "profile": {"ref": reference}}


@pytest.mark.parametrize(
    "name", ["gpt-1.5b on 8xA100", "a/b/c", "by-digest", "caf\u00e9 \u2603", "nul\0", "", "\ud800"]
)
def test_name_stands_for_the_latest_and_digest_for_one(server: Server, name: str) -> None:
    first, second = profile(name=name), profile(name=name)
    digests = [post(server, each).json()["digest"] for each in (first, second)]
    if name and name.isprintable():
        latest = server.get(f"/v1/profiles/{quote(name)}")
        assert (latest.status_code, latest.json()["t_f_ms"]) == (200, second["t_f_ms"])
        assert latest.headers["etag"] == f'"{digests[1]}"'
        again = server.get(f"/v1/profiles/{quote(name)}", **{"If-None-Match": latest.headers["etag"]})
        assert again.status_code == 304
    for digest, posted in zip(digests, (first, second), strict=True):
        found = server.get(f"/v1/profiles/by-digest/{digest}")
        assert found.json()["t_f_ms"] == posted["t_f_ms"]
        assert found.json()["name"] == name


def test_posted_again_is_the_latest_again(server: Server) -> None:
    first, second = profile(name="again"), profile(name="again")
    for each in (first, second, first):
        answer = post(server, each)
        assert (answer.status_code, answer.json()["name"]) == (201, "again")
    assert server.get("/v1/profiles/again").json()["t_f_ms"] == first["t_f_ms"]


def test_problem_that_refers_is_the_problem_itself(server: Server) -> None:
    written = profile(name="referred")
    digest = post(server, written).json()["digest"]
    itself = server.post({**problem(), "profile": written}, wait_s=30)
    for reference in ("referred", digest):
        assert server.post(asked(reference), wait_s=30).content == itself.content


def test_problem_that_refers_by_name_follows_the_name(server: Server) -> None:
    keys = set()
    for _ in range(2):
        post(server, profile(name="moving"))
        keys |= {server.post(asked("moving")).json()["key"] for _ in range(2)}
    assert len(keys) == 2


@pytest.mark.parametrize("reference", ["nothing", "0" * 64, 5, None, ["a"], "\0", "\udfff"])
def test_reference_to_nothing(server: Server, reference: Any) -> None:
    answer = server.post(asked(reference))
    assert answer.status_code == 422
    assert [item["path"] for item in answer.json()["errors"]] == ["$.profile.ref"]


def test_reference_with_more(server: Server) -> None:
    post(server, profile(name="more"))
    answer = server.post({**problem(), "profile": {"ref": "more", "stages": 4}})
    assert answer.status_code == 422
    assert "$.profile.ref" in [item["path"] for item in answer.json()["errors"]]


def test_unknown_profile(server: Server) -> None:
    for path in ("/v1/profiles/unknown", "/v1/profiles/by-digest/unknown"):
        answer = server.get(path)
        assert (answer.status_code, answer.headers["content-type"]) == (404, "application/problem+json")


def test_bad_profile_is_told_where(server: Server) -> None:
    answer = post(server, profile(t_f_ms=-1))
    assert (answer.status_code, answer.json()["errors"][0]["path"]) == (422, "$.t_f_ms")


def test_name_that_no_index_holds_is_refused(server: Server) -> None:
    answer = post(server, profile(name="n" * 2000))
    assert (answer.status_code, answer.json()["errors"][0]["path"]) == (422, "$.name")
