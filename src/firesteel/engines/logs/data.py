"""The schema of the known log lines, `data/logs/*.yaml`.

A line is recognized by a `sign`, plain text that must be in it, before any `pattern` is tried: plain text is
found fast in a hundred megabytes, and a pattern only ever sees lines that it was written for. Named groups of
a pattern can be used in the text that is shown.
"""

from __future__ import annotations

import re
from functools import cache, cached_property
from importlib.resources import files
from string import Formatter
from typing import Annotated, Literal, Self

from packaging.specifiers import InvalidSpecifier, SpecifierSet
from packaging.version import InvalidVersion, Version
from pydantic import AfterValidator, BeforeValidator, Field, model_validator

from firesteel import yaml_schema
from firesteel.facts.evidence import Sources
from firesteel.launch import EngineName

Stage = Literal["process", "download", "weights", "compile", "kv", "graphs", "warm", "listening"]
"""The stages of a start; not every engine has all of them, and each has its own order."""
Kind = Literal["root", "trouble", "follows", "note"]
"""root: names the cause. trouble: a failure that may have another cause behind it. follows: always the result
of another failure. note: nothing failed, yet worth knowing."""
Confidence = Literal["verified", "reported", "claimed"]
"""verified: read in the source that prints it, or seen by us. reported: users or maintainers agree on the
meaning. claimed: one report."""


def _check_pattern(text: str) -> str:
    try:
        re.compile(text)
    except re.error as error:
        raise ValueError(f"not a regular expression: {error}") from None
    outside_classes = re.sub(r"\[(?:\\.|[^\]])+\]", "c", text)
    if re.search(r"(?<!\\)(?:\.[*+]|\)[*+{])", outside_classes):
        raise ValueError("a pattern must limit how much it matches: `.{0,200}`, no `.*`, no repeated group")
    return text


def _check_range(text: str) -> str:
    try:
        SpecifierSet(text)
    except InvalidSpecifier:
        raise ValueError("should be a version range like >=0.20,<0.24 (llama.cpp: >=8955)") from None
    return text


def _as_tuple(value: object) -> object:
    return (value,) if isinstance(value, str) else value


SignTexts = Annotated[tuple[str, ...], BeforeValidator(_as_tuple), Field(min_length=1)]
Pattern = Annotated[str, AfterValidator(_check_pattern)]
Range = Annotated[str, AfterValidator(_check_range)]


class LinePattern(yaml_schema.FileSchema):
    """How to recognize one kind of line."""

    sign: SignTexts
    """One of these texts is in the line."""
    pattern: Pattern | None = None
    versions: Range | None = None

    def match(self, line: str) -> re.Match[str] | None:
        return self.regex.search(line) if self.is_in(line) else None

    def is_in(self, text: str) -> bool:
        """Whether the text may hold such a line: a quick test before `match`."""
        return any(sign in text for sign in self.sign)

    @cached_property
    def regex(self) -> re.Pattern[str]:
        return re.compile(self.pattern or "|".join(re.escape(sign) for sign in self.sign))

    def applies_to(self, version: str | None) -> bool:
        """Whether a release prints the line; True where the release is not known."""
        if self.versions is None or version is None:
            return True
        try:
            return SpecifierSet(self.versions).contains(Version(version), prereleases=True)
        except InvalidVersion:
            return True


class MarkRow(LinePattern):
    stage: Stage
    words: str
    unit: str | None = None
    """What `done` and `total` count."""


class EngineRow(yaml_schema.FileSchema):
    engine: EngineName
    sources: Sources
    known_by: SignTexts
    version: tuple[LinePattern, ...]
    stages: tuple[Stage, ...]
    """In the order in which a start goes through them."""
    marks: tuple[MarkRow, ...]


class PhasesSchema(yaml_schema.FileSchema):
    engines: tuple[EngineRow, ...]


class NoiseRow(LinePattern):
    """A line that looks like an error and is harmless."""

    id: Annotated[str, Field(pattern="^[a-z0-9]+(-[a-z0-9.]+)+$")]
    says: str
    trace: bool = False
    """The traceback after it is harmless too."""
    sources: Sources
    hits: Annotated[tuple[str, ...], Field(min_length=1)]
    misses: tuple[str, ...] = ()


class CauseRow(LinePattern):
    id: Annotated[str, Field(pattern="^[a-z0-9]+(-[a-z0-9.]+)+$")]
    kind: Kind = "root"
    engines: tuple[EngineName, ...] = ()
    """Only in logs of these engines; empty: in any log."""
    host: bool = False
    """The host is the problem; no change to the launch would help."""
    says: str
    """What the line means; may use the named groups of the pattern as {name}."""
    next: str | None = None
    """What to do, with the same placeholders."""
    confidence: Confidence
    sources: Sources
    hits: Annotated[tuple[str, ...], Field(min_length=1)]
    misses: tuple[str, ...] = ()

    @model_validator(mode="after")
    def _check_fields(self) -> Self:
        captured = set(self.regex.groupindex)
        used = {name for text in (self.says, self.next or "") for _, name, _, _ in Formatter().parse(text)}
        if unknown := {name for name in used if name is not None} - captured:
            raise ValueError(f"the pattern captures no `{min(unknown)}`")
        if self.next is None and self.kind in ("root", "trouble"):
            raise ValueError("needs a `next`: what to do about it")
        return self


class CausesSchema(yaml_schema.FileSchema):
    causes: tuple[CauseRow, ...]


class NoiseSchema(yaml_schema.FileSchema):
    noise: tuple[NoiseRow, ...]


def _text(name: str) -> str:
    return (files("firesteel") / "data" / "logs" / name).read_text("utf-8")


@cache
def engine_rows() -> dict[EngineName, EngineRow]:
    file = yaml_schema.load("phases.yaml", _text("phases.yaml"), PhasesSchema)
    return {row.engine: row for row in file.engines}


@cache
def cause_rows() -> tuple[CauseRow, ...]:
    """Specific rows before general ones: of two that match a line, the first is the answer."""
    return yaml_schema.load("diagnoses.yaml", _text("diagnoses.yaml"), CausesSchema).causes


@cache
def noise_rows() -> tuple[NoiseRow, ...]:
    return yaml_schema.load("noise.yaml", _text("noise.yaml"), NoiseSchema).noise
