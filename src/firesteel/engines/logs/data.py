"""What is known of engines' words, as data: `data/logs/*.yaml`.

A line is known by a `sign`, plain text that must be in it, before any `pattern` looks at it: plain text is
found fast in a hundred megabytes, and a pattern only ever sees lines it was written for. What a pattern
captures by name can be used in the words that are shown.
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
"""The ways that a start goes through; not every engine has all, and each has its own order."""
Kind = Literal["root", "trouble", "follows", "note"]
"""root: says itself why. trouble: a failure that may have another behind it. follows: only ever what another
failure led to. note: nothing failed, yet worth knowing."""
Confidence = Literal["verified", "reported", "claimed"]
"""verified: in the source that prints it, or seen here. reported: users or maintainers agree on the meaning.
claimed: one voice."""


def _compiles(text: str) -> str:
    try:
        re.compile(text)
    except re.error as error:
        raise ValueError(f"not a regular expression: {error}") from None
    outside_classes = re.sub(r"\[(?:\\.|[^\]])+\]", "c", text)
    if re.search(r"(?<!\\)(?:\.[*+]|\)[*+{])", outside_classes):
        raise ValueError("a pattern says how much it may swallow: `.{0,200}`, no `.*`, no repeated group")
    return text


def _specifies(text: str) -> str:
    try:
        SpecifierSet(text)
    except InvalidSpecifier:
        raise ValueError("should be a version range like >=0.20,<0.24 (llama.cpp: >=8955)") from None
    return text


def _listed(value: object) -> object:
    return (value,) if isinstance(value, str) else value


Texts = Annotated[tuple[str, ...], BeforeValidator(_listed), Field(min_length=1)]
Pattern = Annotated[str, AfterValidator(_compiles)]
Range = Annotated[str, AfterValidator(_specifies)]


class LinePattern(yaml_schema.FileSchema):
    """A line that means something."""

    sign: Texts
    """One of these is in the line, to the letter."""
    pattern: Pattern | None = None
    versions: Range | None = None

    def read(self, line: str) -> re.Match[str] | None:
        if not any(sign in line for sign in self.sign):
            return None
        return self.regex.search(line)

    @cached_property
    def regex(self) -> re.Pattern[str]:
        return re.compile(self.pattern or "|".join(re.escape(sign) for sign in self.sign))

    def is_of(self, version: str | None) -> bool:
        """Whether a release prints it; of a release that is not known, it may."""
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
    known_by: Texts
    version: tuple[LinePattern, ...]
    stages: tuple[Stage, ...]
    """In the order of a start."""
    marks: tuple[MarkRow, ...]


class PhasesSchema(yaml_schema.FileSchema):
    engines: tuple[EngineRow, ...]


class NoiseRow(LinePattern):
    """What looks bad and is not."""

    id: Annotated[str, Field(pattern="^[a-z0-9]+(-[a-z0-9.]+)+$")]
    says: str
    trace: bool = False
    """A traceback follows that is as harmless."""
    sources: Sources
    hits: Annotated[tuple[str, ...], Field(min_length=1)]
    misses: tuple[str, ...] = ()


class CauseRow(LinePattern):
    id: Annotated[str, Field(pattern="^[a-z0-9]+(-[a-z0-9.]+)+$")]
    kind: Kind = "root"
    engines: tuple[EngineName, ...] = ()
    """Only in the log of these; empty: of any, or of none."""
    host: bool = False
    """The machine lacks something; no change to the launch would help."""
    says: str
    """What it means; may hold what the pattern captured, as {name}."""
    next: str | None = None
    """What to type, likewise."""
    confidence: Confidence
    sources: Sources
    hits: Annotated[tuple[str, ...], Field(min_length=1)]
    misses: tuple[str, ...] = ()

    @model_validator(mode="after")
    def _is_whole(self) -> Self:
        captured = set(self.regex.groupindex)
        used = {name for text in (self.says, self.next or "") for _, name, _, _ in Formatter().parse(text)}
        if unknown := {name for name in used if name is not None} - captured:
            raise ValueError(f"the pattern captures no `{min(unknown)}`")
        if self.next is None and self.kind in ("root", "trouble"):
            raise ValueError("needs a `next`: what to type")
        return self


class CausesSchema(yaml_schema.FileSchema):
    causes: tuple[CauseRow, ...]


class NoiseSchema(yaml_schema.FileSchema):
    noise: tuple[NoiseRow, ...]


def _text(name: str) -> str:
    return (files("firesteel") / "data" / "logs" / name).read_text("utf-8")


@cache
def engine_rows() -> dict[EngineName, EngineRow]:
    sheet = yaml_schema.load("phases.yaml", _text("phases.yaml"), PhasesSchema)
    return {row.engine: row for row in sheet.engines}


@cache
def cause_rows() -> tuple[CauseRow, ...]:
    """The narrower before the wider: of two that read a line, the first is the answer."""
    return yaml_schema.load("diagnoses.yaml", _text("diagnoses.yaml"), CausesSchema).causes


@cache
def noise_rows() -> tuple[NoiseRow, ...]:
    return yaml_schema.load("noise.yaml", _text("noise.yaml"), NoiseSchema).noise
