"""Record: the base of every JSON document, with exact text round trips and errors that name the JSON path."""

from __future__ import annotations

import difflib
import hashlib
import json
import math
import reprlib
import sys
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import Annotated, Any, ClassVar, Self

from pydantic import AfterValidator, BaseModel, ConfigDict, ValidationError, model_validator
from pydantic_core import ErrorDetails, PydanticCustomError

from zbplan.errors import Finding, InvalidInputError

BRANCH = "·"
"""Prefix of the tags of discriminated unions, which are no part of a JSON path."""

DEEPEST = 32
"""Brackets inside each other in an environment; a few hundred cannot be written as JSON again."""

_FINDINGS = "zbplan_findings"


class Record(BaseModel):
    """A frozen, strict JSON document: unknown and reserved fields are refused by name, numbers are finite."""

    model_config = ConfigDict(extra="forbid", frozen=True, strict=True, allow_inf_nan=False)

    reserved: ClassVar[frozenset[str]] = frozenset()
    """Names that a later version will understand."""

    @model_validator(mode="before")
    @classmethod
    def _only_known_fields(cls, data: object) -> object:
        if isinstance(data, Mapping) and (unknown := cls._unknown(data)):
            missing = [Finding(f".{name}", "nothing", "this field") for name in cls._missing(data)]
            refuse([*(Finding(f".{name}", _short(data[name]), cls._advice(str(name))) for name in unknown), *missing])
        return data

    @classmethod
    def _missing(cls, data: Mapping[str, object]) -> list[str]:
        return [name for name, field in cls.model_fields.items() if field.is_required() and name not in data]

    @classmethod
    def _unknown(cls, data: Mapping[str, object]) -> list[str]:
        return [name for name in data if name not in cls.model_fields]

    @classmethod
    def _advice(cls, name: str) -> str:
        if name in cls.reserved:
            return "no such field: this name is reserved and not supported yet"
        near = difflib.get_close_matches(name, cls.model_fields, n=1)
        return f"a known field; did you mean {near[0]!r}?" if near else f"one of {', '.join(cls.model_fields)}"

    @classmethod
    def parse(cls, data: object) -> Self:
        """Check a JSON value.

        Raises
        ------
        InvalidInputError
            With the JSON path, what was found and what is needed, for every field that is wrong.
        """
        try:
            return cls.model_validate(data)
        except ValidationError as error:
            details = error.errors(include_url=False, include_context=True)
            findings = [finding for detail in details for finding in _findings(detail)]
            raise InvalidInputError(findings) from None

    @classmethod
    def parse_json(cls, text: str | bytes) -> Self:
        """Check a JSON text; raises as ``parse`` does, also for text that is no JSON."""
        return cls.parse(load_json(text))

    @classmethod
    def read(cls, path: str | Path) -> Self:
        """Read and check a file; raises as ``parse`` does, also for a file that is not there."""
        try:
            return cls.parse_json(Path(path).read_bytes())
        except OSError as error:
            raise InvalidInputError([Finding(str(path), error.strerror or str(error), "a readable file")]) from None

    def model_copy(self, *, update: Mapping[str, Any] | None = None, deep: bool = False) -> Self:
        """Copy, with changes that the caller answers for; what was computed from the old fields is not kept."""
        copy = super().model_copy(update=update, deep=deep)
        for name in copy.__dict__.keys() - type(self).model_fields.keys():
            del copy.__dict__[name]
        return copy

    def to_json(self) -> str:
        """Return the JSON text; reading it back gives an equal record."""
        return canonical_json(self.model_dump(mode="json", exclude_none=False))


def refuse(findings: Iterable[Finding]) -> None:
    """Inside a pydantic validator: report findings, whose paths continue the validated value's own."""
    found = list(findings)
    if found:
        raise PydanticCustomError(_FINDINGS, "see findings", {"findings": found})


def _not_json(value: object, path: str = "", room: int = DEEPEST) -> Iterator[tuple[str, str]]:
    if isinstance(value, dict | list) and room == 0:
        yield path, "brackets nested deeper"
    elif isinstance(value, dict):
        for name, inner in value.items():
            yield from _not_json(inner, f"{path}.{name}", room - 1)
    elif isinstance(value, list):
        for index, inner in enumerate(value):
            yield from _not_json(inner, f"{path}[{index}]", room - 1)
    elif isinstance(value, float) and not math.isfinite(value):
        yield path, repr(value)
    elif not isinstance(value, str | int | float | None):
        yield path, type(value).__name__


def _checked_environment(environment: dict[str, Any]) -> dict[str, Any]:
    needed = f"JSON with finite numbers, nested at most {DEEPEST} deep"
    refuse(Finding(path, found, needed) for path, found in _not_json(environment))
    return environment


Environment = Annotated[dict[str, Any], AfterValidator(_checked_environment)]
"""What something was measured on: any JSON object, for people."""


def load_json(text: str | bytes) -> Any:
    """Parse JSON, refusing what is no JSON and an object that says one name twice."""
    try:
        decoded = text.decode() if isinstance(text, bytes) else text
        return json.loads(decoded, object_pairs_hook=_unique_names)
    except RecursionError:
        raise InvalidInputError([Finding("$", "brackets nested too deep", "a flat JSON document")]) from None
    except UnicodeDecodeError as error:
        raise InvalidInputError([Finding("$", f"bytes that are no UTF-8 at {error.start}", "UTF-8 text")]) from None
    except json.JSONDecodeError as error:
        if decoded.startswith("\ufeff"):
            raise InvalidInputError([Finding("$", "a byte order mark", "UTF-8 text without one")]) from None
        place = f"at line {error.lineno}, column {error.colno}: {error.msg}"
        raise InvalidInputError([Finding("$", place if decoded.strip() else "no text", "complete JSON")]) from None
    except _TwiceError as error:
        raise InvalidInputError([Finding("$", str(error), "each name once")]) from None
    except ValueError:
        needed = f"at most {sys.get_int_max_str_digits()} digits"
        raise InvalidInputError([Finding("$", "an integer with more digits than can be read", needed)]) from None


def canonical_json(data: object) -> str:
    """Return the one text that stands for a JSON value: sorted names, no spaces, shortest numbers."""
    return json.dumps(data, sort_keys=True, separators=(",", ":"), allow_nan=False, ensure_ascii=False)


def digest(data: object) -> str:
    """Return the SHA-256 of a JSON value's canonical text, in hex."""
    return hashlib.sha256(canonical_json(data).encode()).hexdigest()


def json_path(location: Sequence[int | str]) -> str:
    """Return a pydantic location as a JSON path."""
    steps = (f"[{step}]" if isinstance(step, int) else f".{step}" for step in location if not _is_branch(step))
    return "$" + "".join(steps)


def branch(choose: Callable[[Any], str]) -> Callable[[Any], str]:
    """Mark the tags of a discriminated union so that they stay out of JSON paths."""
    return lambda value: BRANCH + choose(value)


def _is_branch(step: int | str) -> bool:
    return isinstance(step, str) and step.startswith(BRANCH)


class _TwiceError(ValueError):
    """An object says one name twice."""


def _unique_names(pairs: list[tuple[str, Any]]) -> dict[str, Any]:
    unique = dict(pairs)
    if len(unique) < len(pairs):
        seen: set[str] = set()
        twice = next(name for name, _ in pairs if name in seen or seen.add(name))  # type: ignore[func-returns-value]
        raise _TwiceError(f"the name {twice!r} twice in one object")
    return unique


def _findings(detail: ErrorDetails) -> list[Finding]:
    path = json_path(detail["loc"])
    if detail["type"] == _FINDINGS:
        return [Finding(path + sub.path, sub.found, sub.needed) for sub in detail["ctx"]["findings"]]
    if detail["type"] == "missing":
        return [Finding(path, "nothing", "this field")]
    return [Finding(path, _short(detail["input"]), _needed(detail))]


def _needed(detail: ErrorDetails) -> str:
    if detail["type"] in ("model_type", "dict_type"):
        return "a JSON object"
    return detail["msg"].removeprefix("Input should be ")


def _short(value: object) -> str:
    if isinstance(value, bool):
        return str(value).lower()
    text = reprlib.repr(value)
    return f"{type(value).__name__} {text}" if isinstance(value, str | list | dict) else text
