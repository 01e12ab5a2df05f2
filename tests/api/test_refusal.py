"""Every error of the planner as problem details."""

from __future__ import annotations

import json
import pickle

from api.refusal import ErrorDocument, Refusal, document, document_of
from zbplan.errors import DeadlockError, Finding, InfeasibleError, InvalidInputError, MethodError


def test_invalid_input_lists_every_finding() -> None:
    findings = [Finding(f"$.a[{at}]", "nan", "a number") for at in range(5)]
    refusal = document_of(InvalidInputError(findings))
    assert (refusal.status, refusal.type) == (422, "urn:zbplan:error:invalid_input")
    assert [item.path for item in refusal.errors] == [finding.path for finding in findings]


def test_infeasible_lists_the_devices_that_are_short_and_all_limits() -> None:
    refusal = document_of(InfeasibleError([1, 5, None], [2, 4, 6]))
    assert (refusal.status, refusal.smallest_limit_bytes) == (422, [2, 4, 6])
    assert [(item.found, item.needed) for item in refusal.errors] == [("1 bytes on device 0", "at least 2 bytes")]


def test_method_names_what_would_do() -> None:
    refusal = document_of(MethodError("gpipe", "takes too much", ["1f1b", "zb_h1"]))
    assert (refusal.status, refusal.methods) == (422, ["1f1b", "zb_h1"])
    assert "1f1b, zb_h1" in refusal.errors[0].needed


def test_mistake_of_the_planner_is_no_fault_of_the_client() -> None:
    assert document_of(DeadlockError(["F"])).status == 500


def test_members_that_do_not_apply_are_left_out() -> None:
    assert set(json.loads(document("a", 404, "b", "c").to_bytes())) == {"type", "title", "status", "detail", "errors"}


def test_text_of_any_kind_is_sent_as_json() -> None:
    refusal = document("a", 422, "b", "\ud800 \U0001f600 \x00", [Finding("$.\udfff", "nan", "x")])
    assert ErrorDocument.parse_json(refusal.to_bytes()) == refusal


def test_workers_can_refuse() -> None:
    refusal = Refusal(document("a", 422, "b", "c", [Finding("$", "x", "y")]))
    assert pickle.loads(pickle.dumps(refusal)).document == refusal.document
