"""Refusals: every answer that is no, as RFC 9457 problem details."""

from __future__ import annotations

from collections.abc import Sequence

from zbplan.errors import Finding, InfeasibleError, InvalidInputError, MethodError, ZbplanError
from zbplan.record import Record, canonical_json

MEDIA_TYPE = "application/problem+json"


class ErrorItem(Record):
    """One thing that is wrong: where, what was found there and what is needed."""

    path: str
    found: str
    needed: str


class ErrorDocument(Record):
    """Why a request was refused or a solve failed (RFC 9457).

    Attributes
    ----------
    smallest_limit_bytes
        Of an infeasible problem: per device, the smallest memory limit under which a plan exists.
    methods
        Of a method that has no plan: those that have.
    """

    type: str
    title: str
    status: int
    detail: str
    errors: list[ErrorItem]
    smallest_limit_bytes: list[float] | None = None
    methods: list[str] | None = None

    def to_bytes(self) -> bytes:
        """Return the JSON text; a lone surrogate in a name that someone sent becomes a JSON escape."""
        return canonical_json(self.model_dump(exclude_none=True)).encode("utf-8", "backslashreplace")


class Refusal(Exception):  # noqa: N818 - it is an answer
    """An answer that is no; picklable, so that worker processes can give it."""

    def __init__(self, document: ErrorDocument) -> None:
        super().__init__(document)
        self.document = document


def document(name: str, status: int, title: str, detail: str, findings: Sequence[Finding] = ()) -> ErrorDocument:
    """Return problem details whose type is ``urn:zbplan:error:<name>``."""
    errors = [ErrorItem(path=item.path, found=item.found, needed=item.needed) for item in findings]
    return ErrorDocument(type=f"urn:zbplan:error:{name}", title=title, status=status, detail=detail, errors=errors)


def document_of(error: ZbplanError) -> ErrorDocument:
    """Return problem details for an error of the planner: 422, because another problem would do."""
    if isinstance(error, InvalidInputError):
        detail = "; ".join(str(finding) for finding in error.findings[:3])
        return document("invalid_input", 422, "The input is not valid", detail, error.findings)
    if isinstance(error, InfeasibleError):
        return _infeasible(error)
    if isinstance(error, MethodError):
        needed = f"one of {', '.join(error.instead)}" if error.instead else "another method"
        findings = [Finding("$.method", f"{error.method!r}: {error.reason}", needed)]
        no_plan = document("method", 422, "The method has no plan for this problem", str(error), findings)
        return no_plan.model_copy(update={"methods": list(error.instead)})
    return document("internal", 500, "The planner failed", f"{type(error).__name__}: {error}")


def _infeasible(error: InfeasibleError) -> ErrorDocument:
    findings = [
        Finding("$.memory_limit", f"{limit:.15g} bytes on device {device}", f"at least {smallest:.15g} bytes")
        for device, (limit, smallest) in enumerate(zip(error.limit_bytes, error.smallest_limit_bytes, strict=True))
        if limit is not None and limit < smallest
    ]
    infeasible = document("infeasible", 422, "No plan fits into memory", str(error), findings)
    return infeasible.model_copy(update={"smallest_limit_bytes": list(error.smallest_limit_bytes)})
