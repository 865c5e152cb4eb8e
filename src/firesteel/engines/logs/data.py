"""The schema of the known log lines, `data/logs/*.yaml`.

A line is recognized by a `sign`, plain text that must be in it, before any `pattern` is tried: plain text is
found fast in a hundred megabytes, and a pattern only ever sees lines that it was written for. Named groups of
a pattern can be used in the text that is shown.
"""

from __future__ import annotations

import re
from functools import cache, cached_property
from string import Formatter
from typing import Annotated, Literal

from msgspec import Meta
from packaging.version import InvalidVersion, Version

from firesteel import shipped_data
from firesteel.facts.evidence import Sources
from firesteel.launch import EngineName
from firesteel.values import NOT_EMPTY, ExpandText, FileValue, Texts, check_regex
from firesteel.version_range import check_range, is_in_range

Stage = Literal[
    "process", "forming", "download", "weights", "compile", "kv", "graphs", "warm", "listening",
]  # fmt: skip
"""The stages of a start; not every engine has all of them, and each has its own order."""
Kind = Literal["root", "trouble", "follows", "note"]
"""root: names the cause. trouble: a failure that may have another cause behind it. follows: always the result
of another failure. note: nothing failed, yet worth knowing."""
Confidence = Literal["verified", "reported", "claimed"]
"""verified: read in the source that prints it, or seen by us. reported: users or maintainers agree on the
meaning. claimed: one report."""


def _check_pattern(text: str) -> str:
    outside_classes = re.sub(r"\[(?:\\.|[^\]])+\]", "c", check_regex(text))
    if re.search(r"(?<!\\)(?:\.[*+]|\)[*+{])", outside_classes):
        raise ValueError("a pattern must limit how much it matches: `.{0,200}`, no `.*`, no repeated group")
    return text


Pattern = Annotated[str, ExpandText(_check_pattern)]
Range = Annotated[str, ExpandText(check_range)]


class LinePattern(FileValue, kw_only=True, dict=True):
    """How to recognize one kind of line."""

    sign: Texts
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
            return is_in_range(Version(version), self.versions)
        except InvalidVersion:
            return True


class MarkRow(LinePattern, kw_only=True):
    stage: Stage
    words: str
    unit: str | None = None
    """What `done` and `total` count."""


class EngineRow(FileValue, kw_only=True):
    engine: EngineName
    sources: Sources
    known_by: Texts
    version: tuple[LinePattern, ...]
    stages: tuple[Stage, ...]
    """In the order in which a start goes through them."""
    marks: tuple[MarkRow, ...]


class PhasesSchema(FileValue, kw_only=True):
    engines: tuple[EngineRow, ...]


class NoiseRow(LinePattern, kw_only=True):
    """A line that looks like an error and is harmless."""

    id: Annotated[str, Meta(pattern="^[a-z0-9]+(-[a-z0-9.]+)+$", max_length=1000)]
    says: str
    trace: bool = False
    """The traceback after it is harmless too."""
    sources: Sources
    hits: Annotated[tuple[str, ...], NOT_EMPTY]
    misses: tuple[str, ...] = ()


class CauseRow(LinePattern, kw_only=True):
    id: Annotated[str, Meta(pattern="^[a-z0-9]+(-[a-z0-9.]+)+$", max_length=1000)]
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
    hits: Annotated[tuple[str, ...], NOT_EMPTY]
    misses: tuple[str, ...] = ()

    def __post_init__(self) -> None:
        captured = set(self.regex.groupindex)
        used = {name for text in (self.says, self.next or "") for _, name, _, _ in Formatter().parse(text)}
        if unknown := {name for name in used if name is not None} - captured:
            raise ValueError(f"the pattern captures no `{min(unknown)}`")
        if self.next is None and self.kind in ("root", "trouble"):
            raise ValueError("needs a `next`: what to do about it")


class CausesSchema(FileValue, kw_only=True):
    causes: tuple[CauseRow, ...]


class NoiseSchema(FileValue, kw_only=True):
    noise: tuple[NoiseRow, ...]


@cache
def engine_rows() -> dict[EngineName, EngineRow]:
    file = shipped_data.load("logs/phases.yaml", PhasesSchema)
    return {row.engine: row for row in file.engines}


@cache
def cause_rows() -> tuple[CauseRow, ...]:
    """Specific rows before general ones: of two that match a line, the first is the answer."""
    return shipped_data.load("logs/diagnoses.yaml", CausesSchema).causes


@cache
def noise_rows() -> tuple[NoiseRow, ...]:
    return shipped_data.load("logs/noise.yaml", NoiseSchema).noise
