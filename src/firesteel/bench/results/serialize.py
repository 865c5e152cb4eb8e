"""Runs and samples as JSON text and back: what the history keeps, and what a file of one run holds.

A document is `{"firesteel_run": 2, "run": {...}, "samples": [...]}`. Fields that a newer firesteel added are
passed over; one that is not of its kind is a UsageError that names the place. What is read here may be shown:
its words are made printable.
"""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass
from typing import Any, TypeVar

from pydantic import TypeAdapter, ValidationError

from firesteel.bench.values import BenchRun, Point, PointFigures, RequestSample
from firesteel.edge.files.history_keys import current_keys
from firesteel.errors import UsageError
from firesteel.printable import cleaned, printable

FORM = 2
_PRINTED = "firesteel.bench/1"
MAX_SAMPLES = 200_000
T = TypeVar("T")
_RUN, _POINT = TypeAdapter(BenchRun), TypeAdapter(Point)
_SAMPLE, _FIGURES = TypeAdapter(RequestSample), TypeAdapter(PointFigures)


@dataclass(frozen=True, slots=True)
class StoredRun:
    """A run with its samples, as far as there are any, and whose it is."""

    run: BenchRun
    samples: tuple[RequestSample, ...] = ()
    origin: str = "measured here"
    """Else `reported`: from a file that somebody made elsewhere, or with another tool."""
    source: str = ""
    """Of a reported one: the file."""


def text_of(value: BenchRun | RequestSample | Point | PointFigures) -> str:
    return json.dumps(asdict(value), separators=(",", ":"))


def document(kept: StoredRun) -> dict[str, Any]:
    return {
        "firesteel_run": FORM,
        "run": asdict(kept.run),
        "samples": [asdict(each) for each in kept.samples],
    }


def is_document(said: object) -> bool:
    """Ours: an exported run, or what `firesteel bench --json` printed."""
    return isinstance(said, Mapping) and ("firesteel_run" in said or said.get("document") == _PRINTED)


def from_document(said: Mapping[str, Any], where: str) -> StoredRun:
    if said.get("document") == _PRINTED:
        return StoredRun(run_from(said, where), (), "reported", printable(where))
    if said.get("firesteel_run") not in (1, FORM):
        raise UsageError(
            f"{where}: a run in the form {str(said.get('firesteel_run'))[:20]}; this firesteel reads {FORM}",
            next="the newest firesteel, on the machine where it is read",
        )
    samples = said.get("samples", [])
    if not isinstance(samples, list) or len(samples) > MAX_SAMPLES:
        raise UsageError(
            f"{where}: `samples` is no list of at most {MAX_SAMPLES:,}", next=f"head -c 300 {where}"
        )
    run = run_from(said.get("run"), where)
    return StoredRun(
        run, tuple(sample_from(each, f"{where}: samples[{at}]") for at, each in enumerate(samples)),
        "reported", printable(where),
    )  # fmt: skip


def run_from(said: object, where: str) -> BenchRun:
    return _checked(_RUN, said, where)


def sample_from(said: object, where: str) -> RequestSample:
    return _checked(_SAMPLE, said, where)


def point_from(said: object, where: str) -> Point:
    return _checked(_POINT, said, where)


def figures_from(said: object, where: str) -> PointFigures:
    return _checked(_FIGURES, said, where)


def loaded(text: str, where: str) -> Any:
    """JSON that may be anybody's: too deep or broken is a sentence."""
    try:
        return parsed(text)
    except (ValueError, RecursionError) as error:
        at = f" (line {error.lineno})" if isinstance(error, json.JSONDecodeError) else ""
        raise UsageError(f"{where} is no JSON{at}", next=f"head -c 300 {where}") from error


def parsed(text: str) -> Any:
    """As `json.loads`, with words that can be shown. Most texts have no letter that could be otherwise."""
    said = json.loads(text)
    return said if text.isascii() and "\\" not in text and "\x7f" not in text else cleaned(said)


def _checked(kind: TypeAdapter[T], said: object, where: str) -> T:
    try:
        return kind.validate_python(current_keys(said))
    except (ValidationError, RecursionError) as error:
        raise UsageError(
            f"{where}: {_first(error)}", next="firesteel history export, for the form"
        ) from error


def _first(error: ValidationError | RecursionError) -> str:
    if isinstance(error, RecursionError):
        return "nested too deep"
    problem = error.errors(include_url=False, include_input=False)[0]
    place = ".".join(str(part) for part in problem["loc"])[:80] or "the whole"
    return f"`{place}`: {problem['msg'].lower()}"


def samples_document(texts: Sequence[str], where: str) -> tuple[RequestSample, ...]:
    return tuple(sample_from(loaded(text, where), where) for text in texts)
