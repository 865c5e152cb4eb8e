"""Runs and samples as JSON and back: the format of the history and of files with one run.

A document is `{"firesteel_run": 2, "run": {...}, "samples": [...]}`. Fields that a newer firesteel added are
ignored; a field of the wrong type is a UsageError that names its place. What is read here may be displayed,
so its text is made printable.
"""

from __future__ import annotations

import json
from collections.abc import Mapping
from typing import Any, TypeVar

from firesteel.bench.values import BenchRun, Point, PointFigures, RequestSample
from firesteel.errors import UsageError, printable, printable_json
from firesteel.values import InvalidValue, Value, from_json, plain

FORM = 2
OWN = "measured here"
_PRINTED = "firesteel.bench/1"
MAX_SAMPLES = 200_000
T = TypeVar("T")


class StoredRun(Value):
    """A run with its samples, if there are any, and its origin."""

    run: BenchRun
    samples: tuple[RequestSample, ...] = ()
    origin: str = OWN
    """Otherwise `reported`: from a file that was made elsewhere, or with another tool."""
    source: str = ""
    """The file of a reported run."""

    @property
    def is_own(self) -> bool:
        return self.origin == OWN


def to_json(value: BenchRun | RequestSample | Point | PointFigures) -> str:
    return json.dumps(plain(value), separators=(",", ":"))


def to_document(stored: StoredRun) -> dict[str, Any]:
    return {
        "firesteel_run": FORM,
        "run": plain(stored.run),
        "samples": [plain(sample) for sample in stored.samples],
    }


def is_document(value: object) -> bool:
    """Whether it is ours: an exported run, or the output of `firesteel bench --json`."""
    return isinstance(value, Mapping) and ("firesteel_run" in value or value.get("document") == _PRINTED)


def from_document(document: Mapping[str, Any], where: str) -> StoredRun:
    source = printable(where)
    if document.get("document") == _PRINTED:
        return StoredRun(validate_run(document, where), (), "reported", source)
    form = document.get("firesteel_run")
    if form != FORM:
        raise UsageError(
            f"{where}: a run in the form {str(form)[:20]}; this firesteel reads {FORM}",
            next="the newest firesteel, on the machine where it is read",
        )
    samples = document.get("samples", [])
    if not isinstance(samples, list) or len(samples) > MAX_SAMPLES:
        raise UsageError(
            f"{where}: `samples` must be a list of at most {MAX_SAMPLES:,}", next=f"head -c 300 {where}"
        )
    run = validate_run(document.get("run"), where)
    checked = (validate_sample(sample, f"{where}: samples[{index}]") for index, sample in enumerate(samples))
    return StoredRun(run, tuple(checked), "reported", source)


def validate_run(value: object, where: str) -> BenchRun:
    return _validate(BenchRun, value, where)


def validate_sample(value: object, where: str) -> RequestSample:
    return _validate(RequestSample, value, where)


def load_json(text: str, where: str) -> Any:
    """JSON from anywhere; if it is broken or nested too deep, the error says so."""
    try:
        return parse_json(text)
    except (ValueError, RecursionError) as error:
        line = f" (line {error.lineno})" if isinstance(error, json.JSONDecodeError) else ""
        raise UsageError(f"{where} is not JSON{line}", next=f"head -c 300 {where}") from error


def parse_json(text: str) -> Any:
    """Like `json.loads`, with printable text. Plain ASCII without escapes needs no cleaning."""
    value = json.loads(text)
    return value if text.isascii() and "\\" not in text and "\x7f" not in text else printable_json(value)


def _validate(kind: type[T], value: object, where: str) -> T:
    try:
        return from_json(kind, value)
    except (InvalidValue, RecursionError) as error:
        raise invalid(error, where) from error


def invalid(error: InvalidValue | RecursionError, where: str) -> UsageError:
    """The first problem of a file, with its place."""
    what = str(error) if isinstance(error, InvalidValue) else "nested too deep"
    return UsageError(f"{where}: {what}", next="firesteel history export, for an example")
